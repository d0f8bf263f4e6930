"""Chooses a few kernels of a package, the representatives, which are tested instead of all kernels.

A CUDA source consists of constants (``constexpr``, ``using``) and a body. Many kernels have the same body, and differ
only in the values of the constants. For each body, the representatives have every value that a constant has in any
kernel with this body.

A PyTorch kernel has numbers in place of named constants. For a PyTorch kernel, the body is the source without its
numbers, and the constants are the properties of the kernel, such as the head size.
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
    """A kernel's source, divided into its body and its constants. Each constant is a pair (name, value) of strings."""

    body: str
    constants: frozenset[tuple[str, str]]


def parse(text: str, name: str) -> Source:
    """Divide the text of a CUDA source into its body and its constants.

    The result has the text ``NAME`` in place of the kernel's name, ``name``.
    """
    code = _COMMENT.sub("", text).replace(name, "NAME")
    return Source(" ".join(_DECLARATION.sub("", code).split()), frozenset(_CONSTANT.findall(code)))


def representatives(sources: Mapping[str, Source]) -> set[str]:
    """Choose a few kernels to test instead of all kernels in ``sources``, and return their names.

    sources: maps the name of each kernel to the kernel's source.
    """
    groups: dict[str, dict[str, frozenset[tuple[str, str]]]] = {}
    for name, source in sources.items():
        groups.setdefault(source.body, {})[name] = source.constants
    return {name for group in groups.values() for name in cover(group)}


def few(sources: Mapping[str, Source]) -> set[str]:
    """Return the names of kernels that together have every source body, and every value of each constant, in
    ``sources``.

    This function chooses fewer kernels than ``representatives``, which chooses kernels for each source body separately.
    """
    return set(cover({name: source.constants | {("", source.body)} for name, source in sources.items()}))


def one_of_each_body(sources: Mapping[str, Source]) -> set[str]:
    """Return the names of one kernel for each distinct source body, that is, each source without its constants."""
    first: dict[str, str] = {}
    for name, source in sources.items():
        first.setdefault(source.body, name)
    return set(first.values())


def cover(group: Mapping[str, frozenset[tuple[str, str]]]) -> list[str]:
    """Choose kernels that together have every (constant, value) pair in ``group``.

    In each step, this function chooses the kernel with the most pairs that no chosen kernel has yet. If several kernels
    have equally many new pairs, the first of these kernels in ``group`` is chosen. The result has at least one kernel.

    group: maps the name of each kernel to the kernel's (constant, value) pairs.
    """
    missing, chosen = frozenset[tuple[str, str]]().union(*group.values()), list[str]()
    while missing or not chosen:
        chosen.append(max(group, key=lambda name: len(group[name] & missing)))
        missing -= group[chosen[-1]]
    return chosen


def of_files(paths: Mapping[str, Path]) -> set[str]:
    """Choose a few CUDA kernels to test instead of all kernels in ``paths``, and return their symbols.

    paths: maps the symbol of each kernel, ``pav2_`` and the kernel's name, to the kernel's source file.
    """
    return representatives({symbol: read(path, symbol.removeprefix("pav2_")) for symbol, path in paths.items()})


@functools.cache
def read(path: Path, name: str) -> Source:
    """Read the CUDA source file of the kernel ``name``, and divide the source into its body and its constants."""
    return parse(path.read_text("utf-8"), name)


@functools.cache
def of_module(root: Path, row: Row) -> Source:
    """Read the PyTorch kernel of ``row``, and divide its source into its body and its constants.

    root: the folder of the generated package.
    row: the kernel's row in the dispatch table.
    """
    text = root.joinpath(*row.torch.split(".")).with_suffix(".py").read_text("utf-8")
    constants = {**row.key._asdict(), "partition_size": row.partition_size}
    return Source(
        " ".join(_NO_BODY.sub("", text).split()), frozenset((name, str(value)) for name, value in constants.items())
    )
