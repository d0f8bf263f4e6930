"""Finds attention backends of a vLLM tree that call ``PagedAttention.forward_decode``, and classes that override this
method.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pav2gen.install.payload.structure import DECODE
from pav2gen.install.payload.syntax import Method, only_delegates, overrides
from pav2gen.install.tree.trees import VllmTree

#: The folders in which vLLM keeps its attention backends, below vLLM's folder. Some versions have only one of them.
BACKENDS = ("attention/backends", "v1/attention/backends")

_CALL = re.compile(rb"\b(PagedAttention|paged_attn)\.forward_decode\(")
_SUBCLASS = re.compile(rb"^\s*class \w+\([^)]*\bPagedAttention\b", re.M)


def calls_forward_decode(tree: VllmTree) -> bool:
    """Whether an attention backend of the tree calls ``PagedAttention.forward_decode``.

    The answer is also True for a tree that has no files of attention backends.
    """
    files = [file for folder in BACKENDS for file in _sources(tree, folder)]
    return not files or any(_CALL.search(file.read_bytes()) for file in files)


def foreign_overrides(tree: VllmTree) -> Iterator[str]:
    """Yield a sentence for the user for each subclass of ``PagedAttention`` that decodes without the generated kernels.

    Such a class has a ``forward_decode`` of its own that does more than call the method of ``PagedAttention``. Classes
    in the file ``DECODE`` are left out.
    """
    for folder in ("attention/ops", *BACKENDS):
        for file in _sources(tree, folder):
            path = file.relative_to(tree.folder).as_posix()
            if path != DECODE and _SUBCLASS.search(file.read_bytes()):
                found = overrides(_parsed(file), "PagedAttention", "forward_decode")
                yield from (foreign_note(method, path) for method in found if not only_delegates(method))


def foreign_note(method: Method, path: str) -> str:
    """Return the sentence that tells the user that a class decodes without the generated kernels.

    method: the method ``forward_decode`` of the class.
    path: the path of the class's file, relative to vLLM's folder.
    """
    return (
        f"{path} line {method.function.lineno}: {method.owner.name} decodes in its own way; its decodes do not reach "
        "these kernels"
    )


def _sources(tree: VllmTree, folder: str) -> list[Path]:
    return sorted(file for file in (tree.folder / folder).glob("**/*.py") if file.is_file())


def _parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file, or of an empty module if the file is not valid Python."""
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module([], [])
