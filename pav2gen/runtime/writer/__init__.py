"""The cache writer operator ``reshape_and_cache``: checks of arguments, encodings, and helper code for its tests.

The kernels that do the writing are generated from templates, and are not in this package.
"""
