"""Measures which partition sizes of kernels, and which layouts of CUDA kernels, are the fastest on a device."""
