"""Attention modifications: expressions that change or mask attention scores, and their translation to source code.

``parse`` converts the text of an expression to a typed tree. ``tree`` defines the nodes of such trees. ``torch_text``
and ``cuda_text`` translate a tree to PyTorch and CUDA source code.

The generated tests evaluate the same expressions in float64 with separate code
(``pav2gen/runtime/testing/expression.py``).
"""
