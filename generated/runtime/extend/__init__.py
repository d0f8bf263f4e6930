"""The extend operator: paged attention for one or more new tokens of each sequence."""
