"""What users write, read and checked: YAML with positions, specs and their rules, tuning files, model configs.

May import: ``plan``, ``family`` and what those may import.
"""
