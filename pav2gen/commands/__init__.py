"""The modules that implement the commands, such as ``check``. ``pav2gen.cli`` parses arguments and prints results.

This package may import every package except ``cli``.
"""
