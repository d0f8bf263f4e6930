"""Install a generated package into a vLLM tree, report on it, undo it; or pack the package as a vLLM plugin."""
