"""`python -m …runtime.simt FILE.cu`: run a CUDA program on the CPU."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
