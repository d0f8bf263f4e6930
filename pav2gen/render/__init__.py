"""Renders all files of a generated package in memory: kernels, tests, the shared files, and the MANIFESTs.

May import: ``reading``, ``plan``, ``family`` and what those may import.
"""
