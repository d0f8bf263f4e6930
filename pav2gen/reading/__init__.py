"""Reads and checks the files that users write: specs, tuning files and config.json files of models.

This package may import ``plan``, ``family``, and everything that these two may import.
"""
