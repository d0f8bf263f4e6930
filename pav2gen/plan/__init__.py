"""Computes the plan of each kernel: all numbers about the kernel that templates, messages and reports contain.

Each number is computed in one place only. This package may import ``family`` and everything that ``family`` may import.
"""
