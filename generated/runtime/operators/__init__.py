"""Code that the operators of a generated package share: loading kernels, and registering operators with torch.

This folder also contains the operator ``merge_states``.
"""
