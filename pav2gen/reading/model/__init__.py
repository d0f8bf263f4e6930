"""Reads a model's attention from its config.json. A module reads one aspect: heads, layers, context length or scores.

May import: ``wording``, ``errors`` and modules of this package.
"""
