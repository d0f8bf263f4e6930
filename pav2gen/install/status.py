"""Implements ``pav2gen status``: finds the install in a vLLM tree, and compares it with the generated package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.files import sha256
from pav2gen.install.apply import MODULES
from pav2gen.install.editing.patch import Fork, patch_sources
from pav2gen.install.package_contents import PREBUILT, Choice, package_contents, read_library
from pav2gen.install.record import Record
from pav2gen.install.tree.tree_state import TreeState, read_tree_state
from pav2gen.install.tree.trees import PAV2, VllmTree, find_trees
from pav2gen.output.tree import DEFAULT_FOLDER


@dataclass(frozen=True)
class Status:
    """The install in one vLLM tree, with the edits since the install and the differences from the generated package.

    fork: which of the tree's own attention functions work.
    record: the record of the install, or None if nothing is installed.
    edited: a sentence for each file that somebody edited, removed or added, and a sentence for a library that cannot be
    used.
    stale: a sentence for each difference between the install and the generated package, or None if the package cannot
    be read.
    unknown: the reason why ``stale`` is None, or empty.
    library: a description of the installed library of CUDA kernels that was compiled elsewhere, or empty if no usable
    library is installed.
    """

    tree: VllmTree
    fork: Fork
    record: Record | None
    edited: tuple[str, ...] = ()
    stale: tuple[str, ...] | None = ()
    unknown: str = ""
    library: str = ""

    @property
    def sound(self) -> bool:
        """Whether there is a complete install that nobody edited and that equals the generated package."""
        return bool(self.record and self.record.complete and not self.edited and self.stale == ())


def status(path: Path, generated: Path = DEFAULT_FOLDER) -> list[Status]:
    """Return the status of each vLLM tree at ``path``, compared with the package in the folder ``generated``.

    Raises UserError if there is no vLLM tree, or if a tree differs from every vLLM that pav2gen knows.
    """
    return [_status(read_tree_state(tree), generated) for tree in find_trees(path)]


def _status(found: TreeState, generated: Path) -> Status:
    fork = patch_sources({path: source.original for path, source in found.sources.items()}, found.tree.shown).fork
    if found.record is None:
        return Status(found.tree, fork, None)
    library, unusable = _library(found)
    told = Status(found.tree, fork, found.record, (*_edited(found), *unusable), library=library)
    try:
        return replace(told, stale=tuple(_stale(found.record, generated)))
    except UserError as reason:
        return replace(told, stale=None, unknown=str(reason))


def _library(found: TreeState) -> tuple[str, list[str]]:
    """Return a description of the installed library of CUDA kernels, or a list with the reason why the library cannot
    be used.

    The result is the pair (description, list). Both are empty if no library is installed. Otherwise, only one is empty.
    """
    name = found.record.prebuilt if found.record else ""
    path = f"{PREBUILT}/{name}"
    if not name or path not in found.files:
        return "", []
    try:
        return str(read_library(found.tree.pav2 / path)), []
    except UserError as reason:
        return "", [f"{PAV2}/{path} {reason.message}"]


def _edited(found: TreeState) -> Iterator[str]:
    """Yield a sentence for each file that somebody edited, removed or added since the install."""
    for path, source in found.sources.items():
        if found.record and path in found.record.edits and not source.patched:
            yield f"{path} does not call the kernels: its lines were removed"
        elif source.edited:
            yield f"{path} was edited since"
    for path in found.edited():
        yield f"{PAV2}/{path} {'was edited' if path in found.files else 'is missing'}"
    for path in found.strangers():
        yield f"{PAV2}/{path} is not from pav2gen"


def _stale(record: Record, generated: Path) -> Iterator[str]:
    """Yield a sentence for each difference between the install of ``record`` and the package at ``generated``."""
    choice = Choice(() if record.all_specs else tuple(record.specs), record.min_seq_len, record.tests)
    today = package_contents(generated, choice, MODULES)
    for name, entry in today.specs.items():
        if name not in record.specs:
            yield f"{name} is new"
        elif record.specs[name]["sha256"] != entry.spec["sha256"]:
            yield f"{name} has another spec"
    yield from (f"{name} is gone" for name in record.specs.keys() - today.specs.keys())
    digests = {path: digest for path, digest in record.files.items() if not path.startswith(f"{PREBUILT}/")}
    fresh = {path: sha256(content) for path, content in today.files.items()}
    differing = sum(digests.get(path) != fresh.get(path) for path in digests.keys() | fresh.keys())
    if differing:
        yield f"{differing} of {len(fresh)} files differ"
