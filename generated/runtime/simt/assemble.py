"""Compiles a CUDA source for the CPU, with unused bytes after every array in shared memory.

The arguments of this script are the compiler's command line:

    python assemble.py g++ -O1 … -c kernel.cu -o kernel.o

On the CPU, `__shared__` arrays are thread-local variables, and the compiler places them next to each other. Without
unused bytes between the arrays, an access past the end of one array would hit the next array and stay undetected. The
memory checks report every access to the unused bytes, because these bytes belong to no array.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence

GAP = 256
_SECTION = re.compile(r"\s*\.(section\s+(?P<name>[^\s,]+)|text|data|bss)\b")
_ZEROS = re.compile(r"\s*\.(zero|space)\s+\d+\s*$")


def with_gaps(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of an assembly file, with `GAP` unused bytes after each zero-initialized thread-local array.

    `lines`: the lines of the assembly file, as the compiler wrote the file.
    """
    shared = False
    for line in lines:
        section = _SECTION.match(line)
        if section:
            shared = (section["name"] or "").startswith((".tbss", ".tdata"))
        yield line
        if shared and _ZEROS.match(line):
            yield f"\t.zero\t{GAP}\n"


def main(argv: Sequence[str]) -> int:
    """Compile a source to assembly code, add the unused bytes, and assemble the result to an object file.

    `argv`: the compiler's command line, with the options `-c` and `-o`.

    Return 0 if the compiler and the assembler succeed, and otherwise the exit code of the step that failed.
    """
    words = list(argv)
    out = words[words.index("-o") + 1]
    with tempfile.TemporaryDirectory() as folder:
        assembly = os.path.join(folder, "kernel.s")
        words[words.index("-c")] = "-S"
        words[words.index("-o") + 1] = assembly
        code = subprocess.run(words).returncode
        if code != 0:
            return code
        with open(assembly, encoding="utf-8", errors="surrogateescape") as file:
            lines = list(with_gaps(file))
        with open(assembly, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(lines)
        return subprocess.run([words[0], "-c", assembly, "-o", out]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
