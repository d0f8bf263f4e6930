"""The plan of a kernel: all numbers that templates, messages and reports state about the kernel, each computed once.

This package may import ``family`` and everything that ``family`` may import.
"""
