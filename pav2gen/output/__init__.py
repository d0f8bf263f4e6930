"""The generated package on the disk: reads it, and changes it in one atomic step.

May import: ``render`` and everything below it.
"""
