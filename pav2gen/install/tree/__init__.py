"""Reads the current state of a vLLM tree: its folders, the install in it, and the callers of ``forward_decode``."""
