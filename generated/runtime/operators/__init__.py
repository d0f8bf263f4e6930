"""Loading of kernels and registration with torch, which all operators of a package share; and ``merge_states``."""
