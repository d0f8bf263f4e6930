"""Finds the source lines of machine instructions in a compiled library or program, with the tool addr2line."""

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

    `file`: the path of the source file, or an instruction offset such as `lib.so+0x1f` if the line is unknown.
    `line`: the number of the line, or 0 if the line is unknown.
    `callers`: the (file, line) of each inlined call that contains the line, innermost first.
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
    """Return the source line of each instruction offset in a library or program, as a dict from offsets to locations.

    If addr2line is missing or does not know an offset, the location has the offset as text, as in `lib.so+0x1f`.

    `library`: the path of the library or program.
    `offsets`: the positions of instructions in the library or program, in bytes.
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
    """Return the location of the innermost frame outside the simulator's own headers, or None if no frame is outside.

    The callers in the location leave out frames in the simulator's own headers.

    `frames`: the (file, line) of an instruction, followed by those of each inlined call that contains the instruction,
    innermost first.
    """
    ours = str(INCLUDE) + os.sep
    theirs = [f for f in frames if f[1] and not os.path.realpath(f[0]).startswith(ours)]
    return Location(*theirs[0], tuple(theirs[1:])) if theirs else None
