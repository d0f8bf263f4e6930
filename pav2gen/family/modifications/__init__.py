"""Attention modifications: expressions that change or mask a score, and their translations to PyTorch and CUDA.

``tree`` has typed expressions and the rules of the types. ``parse`` makes a tree from text. ``torch_text`` and
``cuda_text`` translate a tree to source text. The float64 reference of generated tests parses and evaluates the same
text with its own code (``pav2gen/runtime/testing/expression.py``).
"""
