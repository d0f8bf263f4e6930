"""Code that all operators of a generated package share: loading kernels, and registering operators with torch.

The operator ``merge_states`` is here too.
"""
