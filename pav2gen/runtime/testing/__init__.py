"""Code that only tests use: test inputs, the float64 reference, and the harnesses that run kernels."""
