"""Measures the speed of kernels, finds the fastest partition sizes on a device, and writes reports."""
