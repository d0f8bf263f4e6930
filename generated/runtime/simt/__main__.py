"""Compiles a CUDA program for the CPU and runs the program: `python -m pav2gen.runtime.simt FILE.cu`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
