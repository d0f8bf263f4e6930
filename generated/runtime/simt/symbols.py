"""Finds the source lines of machine instructions in a library or program, with the tool addr2line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from .toolchain import INCLUDE


@dataclass(frozen=True, order=True)
class Location:
    """A line of a source file.

    `file`: the path of the file. `line`: the number of the line, or 0 if the line is not known; `file` then has a code
    offset, as in `lib.so+0x1f`. `callers`: if the line is in an inlined function, the (file, line) of each inlined call
    through which it was reached, innermost first.
    """

    file: str
    line: int
    callers: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        here = f"{_shown(self.file)}:{self.line}" if self.line else self.file
        return here + "".join(f" < {_shown(f)}:{n}" for f, n in self.callers)


def _shown(path: str) -> str:
    inside = os.path.relpath(path)
    return path if inside.startswith("..") else inside


# The answers of addr2line so far, by library file and modification time.
_known: dict[tuple[str, int], dict[int, Location]] = {}


def locate(library: str, offsets: Iterable[int]) -> dict[int, Location]:
    """The source line of each code offset in a library or program, as a dict from offsets to locations.

    If addr2line is missing or does not know the line of an offset, the location has the offset as text, as in
    `lib.so+0x1f`. `library`: the path of the library or program. `offsets`: positions of instructions in this file.
    """
    wanted = set(offsets)
    if not wanted:
        return {}
    known = _known.setdefault((library, os.stat(library).st_mtime_ns), {})
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool and wanted - known.keys():
        known.update(_ask(tool, library, sorted(wanted - known.keys())))
    return {o: known.get(o) or _nameless(library, o) for o in wanted}


def _nameless(library: str, offset: int) -> Location:
    return Location(f"{os.path.basename(library)}+{offset:#x}", 0)


def _ask(tool: str, library: str, wanted: list[int]) -> dict[int, Location]:
    question = "\n".join(f"{o:#x}" for o in wanted)
    answer = subprocess.run([tool, "-a", "-i", "-e", library], input=question, capture_output=True,
                            encoding="utf-8", errors="surrogateescape")  # fmt: skip
    frames: dict[int, list[tuple[str, int]]] = {}
    offset = 0
    for word in answer.stdout.splitlines():
        if word.startswith("0x"):
            offset = int(word, 16)
        else:
            path, _, line = word.partition(" ")[0].rpartition(":")
            frames.setdefault(offset, []).append((os.path.normpath(path), int(line) if line.isdigit() else 0))
    return {o: _location(chain) or _nameless(library, o) for o, chain in frames.items()}


def _location(frames: list[tuple[str, int]]) -> Location | None:
    """The location of the innermost frame that is not in the simulator's headers, or None if there is no such frame.

    Callers in the simulator's headers are left out of the location too.

    `frames`: the (file, line) of an instruction, then of each inlined call that contains it, innermost first.
    """
    ours = str(INCLUDE) + os.sep
    theirs = [f for f in frames if f[1] and not os.path.realpath(f[0]).startswith(ours)]
    return Location(*theirs[0], tuple(theirs[1:])) if theirs else None
