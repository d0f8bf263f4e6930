"""Edits of a tree's sources that can be undone: patches, hunks, the change as a diff."""
