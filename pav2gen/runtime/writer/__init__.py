"""The cache writer: checks of its call, encodings, and helpers of its tests. The kernels themselves are generated."""
