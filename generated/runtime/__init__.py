"""What every kernel shares: the choice of a kernel, the operator, the reference, and the CUDA loader.

This folder is copied into each generated package as it stands; it imports nothing of the generator.
"""
