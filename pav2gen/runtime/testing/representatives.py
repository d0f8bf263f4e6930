"""Chooses a few kernels, the representatives, to be tested in place of all kernels of a package.

A CUDA source begins with its constants (``constexpr``, ``using``), and the body follows. Many kernels have the same
body and differ only in the values of constants. For each body, every value of each constant occurs in at least one
representative. So a test of the representatives finds a fault in a body, and a fault that one value causes.

A PyTorch kernel has numbers in place of constants. Its body is its source without numbers, and its constants are the
axes of its key.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..choice.dispatch_row import Row

_COMMENT = re.compile(r"//[^\n]*")
#: Matches the definition of a constant or an alias whose value does not depend on other constants.
_CONSTANT = re.compile(r"^(?:constexpr \w+|using) (\w+) = ((?:(?!\bk[A-Z])[^;])*);", re.MULTILINE)
#: Matches declarations outside of functions, which do not belong to the body. Those inside of functions do.
_DECLARATION = re.compile(r"^(?:constexpr|using|static_assert)\b[^;]*;", re.MULTILINE)
#: Matches what is no part of a PyTorch kernel's body: docstrings, comments and numbers.
_NO_BODY = re.compile(r'""".*?"""|#[^\n]*|\b\d+\b', re.DOTALL)


class Source(NamedTuple):
    """The parts of a kernel's source. constants: a (name, value) pair for each constant."""

    body: str
    constants: frozenset[tuple[str, str]]


def parse(text: str, name: str) -> Source:
    """Split the text of a source into body and constants. The kernel's name, ``name``, becomes ``NAME`` in both."""
    code = _COMMENT.sub("", text).replace(name, "NAME")
    return Source(" ".join(_DECLARATION.sub("", code).split()), frozenset(_CONSTANT.findall(code)))


def representatives(sources: Mapping[str, Source]) -> set[str]:
    """Return the names of the representatives in ``sources``, a mapping from the names of kernels to their sources."""
    groups: dict[str, dict[str, frozenset[tuple[str, str]]]] = {}
    for name, source in sources.items():
        groups.setdefault(source.body, {})[name] = source.constants
    return {name for group in groups.values() for name in cover(group)}


def few(sources: Mapping[str, Source]) -> set[str]:
    """Choose fewer kernels than ``representatives``. Each body is in one of them, and each value of each constant."""
    return set(cover({name: source.constants | {("", source.body)} for name, source in sources.items()}))


def one_of_each_body(sources: Mapping[str, Source]) -> set[str]:
    """Choose the first kernel of each body."""
    first: dict[str, str] = {}
    for name, source in sources.items():
        first.setdefault(source.body, name)
    return set(first.values())


def cover(group: Mapping[str, frozenset[tuple[str, str]]]) -> list[str]:
    """Choose kernels that together have every (constant, value) pair in ``group``, and at least one kernel.

    Each step chooses the kernel with the most (constant, value) pairs that no chosen kernel has yet. A tie goes to the
    first in ``group``.

    group: the (constant, value) pairs of each kernel, by the kernel's name. All these kernels have the same body.
    """
    missing, chosen = frozenset[tuple[str, str]]().union(*group.values()), list[str]()
    while missing or not chosen:
        chosen.append(max(group, key=lambda name: len(group[name] & missing)))
        missing -= group[chosen[-1]]
    return chosen


def of_files(paths: Mapping[str, Path]) -> set[str]:
    """Return the symbols of the representatives. A symbol consists of ``pav2_`` and the kernel's name.

    paths: the source file of each kernel, by the kernel's symbol.
    """
    return representatives({symbol: read(path, symbol.removeprefix("pav2_")) for symbol, path in paths.items()})


@functools.cache
def read(path: Path, name: str) -> Source:
    """Read and split the source of the kernel ``name``. The results are cached."""
    return parse(path.read_text("utf-8"), name)


@functools.cache
def of_module(root: Path, row: Row) -> Source:
    """Read the PyTorch kernel of ``row`` in the package at ``root``. The results are cached."""
    text = root.joinpath(*row.torch.split(".")).with_suffix(".py").read_text("utf-8")
    constants = {**row.key._asdict(), "partition_size": row.partition_size}
    return Source(
        " ".join(_NO_BODY.sub("", text).split()), frozenset((name, str(value)) for name, value in constants.items())
    )
