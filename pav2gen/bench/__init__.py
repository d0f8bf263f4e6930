"""Measures kernels side by side, tunes the choice of partition sizes, and writes reports."""
