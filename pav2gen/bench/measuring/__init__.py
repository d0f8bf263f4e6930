"""Measures kernels and baselines side by side. The result of a run is a JSON document.

A problem is a call to measure: a key, numbers of heads, sequences and tokens. A contestant solves problems: a generated
kernel, or a baseline from elsewhere.
"""
