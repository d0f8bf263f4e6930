"""Worker threads that compute long calls of PyTorch kernels on a CPU."""
