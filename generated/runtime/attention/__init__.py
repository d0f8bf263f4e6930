"""What PyTorch kernels of attention share: tiles, the workspace, softmax states, windows, and the caller's scratch."""
