"""Measures extend kernels: their contestants, their problems and their tables."""
