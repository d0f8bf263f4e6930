"""Measures which partition sizes and which layouts of the CUDA kernels are the fastest on a device."""
