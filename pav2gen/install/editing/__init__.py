"""Edits the source files of a vLLM tree so that the edits can be undone, and makes the diff of these edits."""
