"""A page of what was measured and predicted: charts, a summary of the model, the report."""
