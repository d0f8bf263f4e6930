"""Code that all generated kernels share: operators, argument checks, kernel selection, and loading of CUDA libraries.

This folder is copied unchanged into each generated package. The modules of ``runtime`` import nothing from the rest of
pav2gen.
"""
