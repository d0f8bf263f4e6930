"""The extend operator: attention of several query tokens per sequence over the paged cache."""
