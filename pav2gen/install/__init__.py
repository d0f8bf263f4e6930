"""Installs a generated package into a vLLM tree, reports or undoes an install, or packs the package as a vLLM plugin.

A "tree" is the folder of vLLM's Python package, either installed or in a source checkout. ``pav2/`` is the folder
``attention/ops/pav2`` of a tree, into which an install copies the generated package.
"""
