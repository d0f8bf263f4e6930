"""Compiles the CUDA sources of a package into shared libraries, and caches these libraries on the disk."""
