"""Code that all operators of a package share: loading of kernels, and registration with torch."""
