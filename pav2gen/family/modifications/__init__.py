"""Attention modifications: expressions that change or mask a score, and their translations to PyTorch and CUDA.

The module ``tree`` has the nodes of typed expressions, and the rules for their types. ``parse`` makes a tree from text.
``torch_text`` and ``cuda_text`` translate a tree to source text. Generated tests compare kernels with a float64
reference, which parses and evaluates the same text with separate code (``pav2gen/runtime/testing/expression.py``).
"""
