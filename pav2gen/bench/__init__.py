"""Measure kernels side by side, tune the choice among them, and report."""
