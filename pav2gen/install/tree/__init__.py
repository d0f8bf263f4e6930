"""A vLLM tree as it stands: where it is, what is installed in it, who calls its decode."""
