"""Measures on a device which partition sizes and layouts are the fastest. The results are written beside the spec."""
