"""What a model's config.json says of its attention, question by question: heads, layers, context length.

May import: ``wording``, ``errors`` and modules of this package.
"""
