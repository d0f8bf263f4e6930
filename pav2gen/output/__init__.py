"""Reads the generated package from the disk, and changes it in one atomic step.

The "tree" is the folder of the generated package. The "owner" of a file is the spec from which the file was generated.
Files that all specs share have the owner ``SHARED``. Each owner has a manifest, that is, a file MANIFEST.json that
lists the owner's files.

The modules in this folder may import ``render`` and everything that ``render`` may import.
"""
