"""Helpers for files: digests, checks of paths, and a function that recognises caches and compiled files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path, PurePosixPath

from pav2gen.errors import UserError

#: What Python, test tools and compilers leave in a folder of sources: folders by name, and files by suffix.
LEFTOVER_FOLDERS = frozenset({"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"})
LEFTOVER_SUFFIXES = frozenset({".pyc", ".pyo", ".so", ".o"})


def sha256(content: bytes) -> str:
    """Return the SHA-256 digest of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def checked_path(path: str) -> str:
    """Return ``path`` if it is a relative POSIX path without empty, ``.`` or ``..`` parts.

    Raises ValueError for any other path.
    """
    if "\\" in path or "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"not a relative path below the package: {path!r}")
    return path


def is_leftover(path: str) -> bool:
    """Whether ``path`` is a compiled file, a cache folder such as ``__pycache__``, or anything in such a folder."""
    pure = PurePosixPath(path)
    return pure.suffix in LEFTOVER_SUFFIXES or not LEFTOVER_FOLDERS.isdisjoint(pure.parts)


def check_replaceable(path: Path, begins: bytes, what: str) -> None:
    """Raise UserError if ``path`` is an existing file with unexpected content, which a command must not replace.

    begins: the first bytes of every file of the expected kind. An empty file may be replaced too.
    what: the name that the error message gives to the expected kind of file, such as ``a page of HTML``.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(len(begins))
    if start and start != begins:
        raise UserError(f"exists already and is not {what}; write to another file", str(path))


def check_output(path: Path, *inputs: Path) -> None:
    """Raise UserError if ``path``, which a command will write, is one of the command's ``inputs``."""
    for given in inputs:
        if os.path.realpath(path) == os.path.realpath(given):
            raise UserError("is an input of this command, which would overwrite it; write to another file", str(path))
