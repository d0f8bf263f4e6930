"""Code that all operators of a generated package share: it loads kernels and registers operators with torch.

The operator ``merge_states`` is here too.
"""
