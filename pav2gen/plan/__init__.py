"""The plan of a kernel: all numbers about it that templates, messages and reports show. Each is computed once.

May import: ``family`` and what that may import.
"""
