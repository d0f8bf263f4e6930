"""What the operators of a package share: the kernels that are loaded, and the registration with torch."""
