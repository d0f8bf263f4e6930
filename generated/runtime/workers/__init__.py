"""Worker threads that compute the tiles of a long call of a PyTorch kernel on a CPU."""
