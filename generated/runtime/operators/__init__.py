"""Code that all operators of a package share: it loads kernels, registers operators with torch, and merges states."""
