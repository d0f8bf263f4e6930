"""Runs the command line for ``python -m pav2gen``."""

from pav2gen.cli import main

if __name__ == "__main__":
    main(prog_name="pav2gen")
