"""Renders specs to texts in memory: templates, kernels, the package, its MANIFESTs.

May import: ``reading``, ``plan``, ``family`` and what those may import.
"""
