"""Attention modifications: expressions over a score and its place, and their translations to PyTorch and CUDA.

``tree`` holds typed expressions and the rules of the types. ``parse`` makes a tree from text. ``torch_text`` and
``cuda_text`` translate a tree to source text. The float64 oracle of generated tests evaluates the same text on its own
(``pav2gen/runtime/expression.py``) and shares no code with the modules here.
"""
