"""Code that only tests use: their inputs, the float64 reference, and the harnesses that run kernels."""
