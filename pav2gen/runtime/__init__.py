"""Code that all generated kernels share: operators, argument checks, kernel selection, and loading of CUDA libraries.

This folder is copied unchanged into each generated package. Its modules import nothing from the rest of pav2gen.
"""
