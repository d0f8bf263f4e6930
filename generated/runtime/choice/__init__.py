"""Chooses the kernel that serves a call: keys, the rows of the dispatch table, and the messages if no kernel fits."""
