"""Reads one aspect each of a model's attention from its config.json: heads, layers, context length, scores.

May import: ``wording``, ``errors`` and modules of this package.
"""
