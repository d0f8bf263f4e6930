"""pav2gen: paged-attention decode kernels, generated from a YAML spec."""

__version__ = "0.1.0"
