"""Code that only tests use: test inputs, the float64 reference, and the classes that run kernels and check results."""
