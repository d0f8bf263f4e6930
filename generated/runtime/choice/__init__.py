"""Chooses a generated kernel for each call, and writes the error message if no kernel fits the call."""
