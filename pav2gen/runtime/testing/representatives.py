"""Chooses a few CUDA kernels, the representatives, to be tested in place of all kernels of a package.

A source begins with its constants (``constexpr``, ``using``), and the body follows. Many kernels have the same body and
differ only in the values of constants. For each body, every value of each constant occurs in at least one
representative. So a test of the representatives finds a fault in a body, and a fault that one value causes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_COMMENT = re.compile(r"//[^\n]*")
#: A constant or an alias with a value that does not depend on other constants.
_CONSTANT = re.compile(r"^(?:constexpr \w+|using) (\w+) = ((?:(?!\bk[A-Z])[^;])*);", re.MULTILINE)
#: Declarations outside of functions. They do not belong to the body. Declarations inside of functions do.
_DECLARATION = re.compile(r"^(?:constexpr|using|static_assert)\b[^;]*;", re.MULTILINE)


class Source(NamedTuple):
    """The parts of a CUDA kernel's source. constants: the name and the value of each constant."""

    body: str
    constants: frozenset[tuple[str, str]]


def parse(text: str, name: str) -> Source:
    """Split the text of a source into body and constants. ``name``, the kernel's own name, is replaced in both."""
    code = _COMMENT.sub("", text).replace(name, "NAME")
    return Source(" ".join(_DECLARATION.sub("", code).split()), frozenset(_CONSTANT.findall(code)))


def representatives(sources: Mapping[str, Source]) -> set[str]:
    """The names of the representatives among the kernels in ``sources``, which maps the kernels' names to sources."""
    groups: dict[str, dict[str, frozenset[tuple[str, str]]]] = {}
    for name, source in sources.items():
        groups.setdefault(source.body, {})[name] = source.constants
    return {name for group in groups.values() for name in cover(group)}


def cover(group: Mapping[str, frozenset[tuple[str, str]]]) -> list[str]:
    """Choose kernels that together have all constants in ``group``. At least one kernel is chosen.

    Each step chooses the kernel with the most constants that are still missing. A tie goes to the first in ``group``.

    group: the constants of each kernel, by its name. All these kernels have the same body.
    """
    missing, chosen = frozenset[tuple[str, str]]().union(*group.values()), list[str]()
    while missing or not chosen:
        chosen.append(max(group, key=lambda name: len(group[name] & missing)))
        missing -= group[chosen[-1]]
    return chosen


def of_files(paths: Mapping[str, Path]) -> set[str]:
    """The symbols of the representatives. A symbol is ``pav2_`` and the kernel's name.

    paths: the source file of each kernel, by the kernel's symbol.
    """
    return representatives({symbol: read(path, symbol.removeprefix("pav2_")) for symbol, path in paths.items()})


@functools.cache
def read(path: Path, name: str) -> Source:
    """Read the source of the kernel ``name``. Each file is read once."""
    return parse(path.read_text("utf-8"), name)
