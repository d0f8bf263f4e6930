"""Finds how many registers nvcc assigns to each CUDA kernel, and the figures that depend on this number."""
