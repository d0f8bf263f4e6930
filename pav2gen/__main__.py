"""``python -m pav2gen``: the command line."""

from pav2gen.cli import main

if __name__ == "__main__":
    main(prog_name="pav2gen")
