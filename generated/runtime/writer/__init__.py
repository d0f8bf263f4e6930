"""The cache writer: checks of its call, encodings, and what its tests need; the kernels themselves are generated."""
