"""Runs the operator ``reshape_and_cache``, which writes new keys and values into the KV cache.

The folder contains checks of arguments, encodings of compressed caches, and helper code for tests. The kernels are not
in the folder, because pav2gen generates them from templates.
"""
