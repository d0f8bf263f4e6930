"""pav2gen generates paged-attention kernels, in PyTorch and in CUDA, from a YAML spec."""

__version__ = "0.1.0"
