"""Reads the generated package from the disk, and changes it in one atomic step.

The "tree" is the folder of the generated package. The "owner" of a file is the spec that it was generated from. Files
that all specs share have the owner ``SHARED``. Each owner has a manifest, a file MANIFEST.json that lists its files.

The modules in this folder may import ``render`` and everything that ``render`` may import.
"""
