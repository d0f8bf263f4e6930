"""Reads and checks the files that users write: specs, tuning files and config.json files of models.

This package may import ``plan``, ``family`` and what those may import.
"""
