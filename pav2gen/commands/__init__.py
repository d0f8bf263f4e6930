"""The work of each command, one module for each. ``pav2gen.cli`` parses the arguments and prints the results.

This package may import every package except ``cli``.
"""
