"""Compiles a CUDA program and runs it on the CPU: `python -m pav2gen.runtime.simt FILE.cu`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
