"""Renders all files of a generated package in memory: kernels, their tests, the files that all specs share, and a
MANIFEST.json for each owner.

This package may import ``reading``, ``plan``, ``family``, and everything that these three may import.
"""
