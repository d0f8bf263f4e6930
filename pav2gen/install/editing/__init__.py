"""Edits the sources of a vLLM tree, in a way that can be undone, and shows the edits as a diff."""
