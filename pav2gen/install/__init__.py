"""Installs a generated package into a vLLM tree, shows and undoes the install, or packs the package as a vLLM plugin.

A "tree" is the folder of vLLM's Python package, either installed or in a source checkout.
"""
