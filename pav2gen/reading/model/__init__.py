"""Reads the properties of a model's attention from its config.json: heads, layers, context length and scores.

This package may import ``pav2gen.wording``, ``pav2gen.errors`` and its own modules.
"""
