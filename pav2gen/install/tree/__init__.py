"""Finds vLLM trees, and reads from each what an install needs to know, such as the files of an earlier install."""
