"""Reads the current state of a vLLM tree: its folders, the install in it, and the backends that call its decode."""
