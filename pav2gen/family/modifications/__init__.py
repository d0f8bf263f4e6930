"""Attention modifications: expressions that change or mask attention scores, and their translation to source text.

``parse`` makes a typed tree from the text of an expression. ``tree`` defines the nodes of such trees. ``torch_text``
and ``cuda_text`` translate a tree to PyTorch and CUDA source text.

The generated tests evaluate the text of the same expressions in float64 with separate code
(``pav2gen/runtime/testing/expression.py``).
"""
