"""Attention modifications: expressions that change or mask an attention score, and their translations to PyTorch and
CUDA.

The module ``tree`` has the nodes of typed expressions, and the rules for their types. ``parse`` makes a tree from the
text of an expression. ``torch_text`` and ``cuda_text`` translate a tree to source text. Generated tests compare kernels
with a float64 reference, which parses and evaluates the text of the same expressions with separate code
(``pav2gen/runtime/testing/expression.py``).
"""
