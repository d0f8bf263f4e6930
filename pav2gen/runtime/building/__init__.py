"""Compiles the CUDA sources of a package into libraries: compilers, build steps, and the cache of compiled
libraries.
"""
