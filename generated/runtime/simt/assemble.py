"""Compiles one source of a checked build, with a gap after every shared array. Runs as a script, before a compiler:

    python assemble.py g++ -O1 … -c kernel.cu -o kernel.o

Shared arrays lie side by side in the library's TLS segment. A pointer past the end of one array would point into the
next array. This step adds unused bytes after each array. The symbol table names no array for these bytes, so the
checks report an access to them.
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
    """Add `GAP` unused bytes to an assembly file after each zero-initialized array in a TLS section."""
    shared = False
    for line in lines:
        section = _SECTION.match(line)
        if section:
            shared = (section["name"] or "").startswith((".tbss", ".tdata"))
        yield line
        if shared and _ZEROS.match(line):
            yield f"\t.zero\t{GAP}\n"


def main(argv: Sequence[str]) -> int:
    """Compile to assembly, add the gaps, assemble. Returns the exit code of the first failed step, or 0."""
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
