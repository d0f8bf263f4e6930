"""The choice of partition sizes and layouts, measured on a device and written beside the spec."""
