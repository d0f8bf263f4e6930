"""Compiles a package's CUDA sources into libraries: the compilers, the build, and the cache of compiled libraries."""
