"""A vLLM tree: find it, put a generated package into it, tell what is there, and undo it; or pack it as a plugin."""
