"""The generated package on the disk: what stands there, and the one atomic step that changes it.

May import: ``render`` and everything below it.
"""
