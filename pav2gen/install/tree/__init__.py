"""The current state of a vLLM tree: its place, the install in it, and the callers of its decode."""
