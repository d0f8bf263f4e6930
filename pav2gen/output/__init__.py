"""Reads the generated package from the disk, and changes it in one atomic step.

The "tree" is the folder of the generated package. The owner of a file is the spec that it was generated from, or the
owner of the files that all specs share.

May import: ``render`` and everything below it.
"""
