"""The cache writer operator ``reshape_and_cache``: checks of its arguments, encodings, and helpers of its tests.

Its kernels are generated.
"""
