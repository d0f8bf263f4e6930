"""What only tests need: inputs, the float64 reference, and the harnesses that run kernels."""
