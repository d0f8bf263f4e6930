"""Compiles a CUDA source for a checked build, with unused bytes after every array in shared memory. Use as a script:

    python assemble.py g++ -O1 … -c kernel.cu -o kernel.o

The words after the script's name are the compiler's command line. The simulator's headers define `__shared__` arrays as
thread-local variables, which lie side by side in the segment for thread-local storage (TLS) of the library. Without the
unused bytes, an access past the end of one array would hit the next array, and no check would report it. The unused
bytes belong to no array, so the checks report an access to them.
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
    """Yield the lines of an assembly file, with `GAP` unused bytes after each zero-initialized array in a TLS section.

    `lines`: the lines of the assembly file, as the compiler wrote it.
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
    """Compile a source to assembly, add the unused bytes, and assemble the result to an object file.

    `argv`: the compiler's command line, which has the options `-c` and `-o`. Returns the exit code of the first step
    that failed, or 0.
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
