"""Measures kernels and baselines side by side. The result is a JSON document, which docs/bench.md describes.

A problem is a call to measure: a kernel configuration (``Key``), and the numbers of heads, sequences and tokens. A
contestant is an implementation that solves problems: a generated kernel, or a baseline such as torch's attention.
"""
