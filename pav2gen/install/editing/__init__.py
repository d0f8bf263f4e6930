"""Edits the sources of a vLLM tree so that the edits can be undone, and shows the edits as a diff."""
