"""Measures extend kernels, which compute attention for several new tokens of each sequence."""
