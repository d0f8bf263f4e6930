"""Reads and checks the files that users write or download: spec files, tuning files, and config.json files of models.

This package may import ``pav2gen.plan``, ``pav2gen.family``, and everything that these two packages may import.
"""
