"""Code that all generated kernels share: operators, checks of calls, the choice of a kernel, loading CUDA libraries.

This folder is copied unchanged into each generated package. It imports nothing from the rest of pav2gen.
"""
