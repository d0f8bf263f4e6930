"""Chooses representatives among CUDA kernels with the same body: kernels whose sources differ in constants only.

A source begins with its constants (``constexpr``, ``using``), and the body follows. Each value that a constant takes in
a body is in one representative at least. So a fault of the body, or of one value in it, shows in a representative.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_COMMENT = re.compile(r"//[^\n]*")
#: A constant or an alias that is known without the others: its value names none of them.
_CONSTANT = re.compile(r"^(?:constexpr \w+|using) (\w+) = ((?:(?!\bk[A-Z])[^;])*);", re.MULTILINE)
#: What a body leaves out. Declarations inside of functions belong to the body.
_DECLARATION = re.compile(r"^(?:constexpr|using|static_assert)\b[^;]*;", re.MULTILINE)


class Source(NamedTuple):
    """The source of a CUDA kernel. constants: (name, value) of each."""

    body: str
    constants: frozenset[tuple[str, str]]


def parse(text: str, name: str) -> Source:
    """Split the text of a source. ``name`` is the kernel's own name, which both parts leave out."""
    code = _COMMENT.sub("", text).replace(name, "NAME")
    return Source(" ".join(_DECLARATION.sub("", code).split()), frozenset(_CONSTANT.findall(code)))


def representatives(sources: Mapping[str, Source]) -> set[str]:
    """The names of representatives. Of kernels that add as many values, the first one in ``sources`` is chosen."""
    groups: dict[str, dict[str, frozenset[tuple[str, str]]]] = {}
    for name, source in sources.items():
        groups.setdefault(source.body, {})[name] = source.constants
    return {name for group in groups.values() for name in cover(group)}


def cover(group: Mapping[str, frozenset[tuple[str, str]]]) -> list[str]:
    """Names of ``group``, at least one, that have all its constants together. The one that adds most comes first."""
    missing, chosen = frozenset[tuple[str, str]]().union(*group.values()), list[str]()
    while missing or not chosen:
        chosen.append(max(group, key=lambda name: len(group[name] & missing)))
        missing -= group[chosen[-1]]
    return chosen


def of_files(paths: Mapping[str, Path]) -> set[str]:
    """The representatives among source files, by the symbols of the kernels: ``pav2_`` and the kernel's own name."""
    return representatives({symbol: read(path, symbol.removeprefix("pav2_")) for symbol, path in paths.items()})


@functools.cache
def read(path: Path, name: str) -> Source:
    """Read the source of the kernel ``name``. Each file is read once."""
    return parse(path.read_text("utf-8"), name)
