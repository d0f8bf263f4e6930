"""The work of each command, one module each. ``cli`` parses the arguments and prints the results.

May import: every other package except ``cli``.
"""
