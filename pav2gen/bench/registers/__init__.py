"""Finds how many registers nvcc assigns to the threads of each CUDA kernel, and updates the figures that depend on
them.
"""
