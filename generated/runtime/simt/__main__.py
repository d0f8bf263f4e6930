"""Runs a CUDA program on the CPU: `python -m …runtime.simt FILE.cu`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
