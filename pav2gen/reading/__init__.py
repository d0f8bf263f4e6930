"""Reads and checks the files that users write: YAML with positions, specs and their rules, tuning files, model configs.

May import: ``plan``, ``family`` and what those may import.
"""
