"""Measures the times of kernels, finds the fastest partition sizes on a device, and writes HTML pages about kernels."""
