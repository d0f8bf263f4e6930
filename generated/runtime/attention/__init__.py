"""Code that the PyTorch attention kernels share, such as memory buffers and the merge of partial softmax results."""
