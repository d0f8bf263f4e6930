"""Kernels and baselines side by side: problems, contestants, clocks, and the document of a run."""
