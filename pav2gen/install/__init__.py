"""Installs a generated package into a vLLM tree, reports on it, and undoes it; or packs the package as a vLLM plugin.

A "tree" is a vLLM: its package folder, installed or in a source checkout. "Our" files, lines and calls are those that
an install puts into a tree.
"""
