"""Renders all files of a generated package in memory: kernels, tests, shared files, and MANIFEST.json files.

This package may import ``reading``, ``plan``, ``family``, and everything that these three may import.
"""
