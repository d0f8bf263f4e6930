"""Finds how many registers nvcc assigns to a thread of each CUDA kernel, and computes figures that depend on this
number.
"""
