"""The extend operator: paged attention for several new query tokens per sequence."""
