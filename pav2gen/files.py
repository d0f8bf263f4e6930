"""Helpers for files: digests, checks of paths, and files that other programs leave in a folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path, PurePosixPath

from pav2gen.errors import UserError

#: Names of files and folders that Python, editors and compilers leave in a folder of sources.
LEFTOVER_FOLDERS = frozenset({"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"})
LEFTOVER_SUFFIXES = frozenset({".pyc", ".pyo", ".so", ".o"})


def sha256(content: bytes) -> str:
    """The sha256 of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def checked_path(path: str) -> str:
    """Return ``path`` if it is a relative posix path without empty, ``.`` or ``..`` parts.

    Raises ValueError for any other path.
    """
    if "\\" in path or "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"not a relative path below the package: {path!r}")
    return path


def is_leftover(path: str) -> bool:
    """Whether ``path`` is a cache or a compiled file that a run left behind."""
    pure = PurePosixPath(path)
    return pure.suffix in LEFTOVER_SUFFIXES or not LEFTOVER_FOLDERS.isdisjoint(pure.parts)


def check_replaceable(path: Path, begins: bytes, what: str) -> None:
    """Raise UserError if ``path`` has content that does not start with ``begins``. ``what`` is the expected content."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(len(begins))
    if start and start != begins:
        raise UserError(f"exists already and is not {what}; write to another file", str(path))


def check_output(path: Path, *inputs: Path) -> None:
    """Raise UserError if a command would write ``path`` and also reads it."""
    for given in inputs:
        if os.path.realpath(path) == os.path.realpath(given):
            raise UserError("is read by this command, which would replace it; write to another file", str(path))
