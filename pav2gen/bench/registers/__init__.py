"""Finds the number of registers that nvcc assigns to the threads of each CUDA kernel, and the figures that follow."""
