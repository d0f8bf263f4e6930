"""Makes the HTML page of ``pav2gen report``: charts of measured and predicted times, and a summary of the kernels."""
