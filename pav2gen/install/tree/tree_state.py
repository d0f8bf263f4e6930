"""Reads the files of an earlier install in a vLLM tree, and vLLM's source files with and without the edits of this
install.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pav2gen.errors import UserError
from pav2gen.files import is_leftover, sha256
from pav2gen.install.editing.hunks import reverse
from pav2gen.install.editing.patch import HOOKS
from pav2gen.install.editing.transaction import ASIDE
from pav2gen.install.payload.softcap_structure import BACKEND
from pav2gen.install.payload.structure import DECODE, LAYER, OPS
from pav2gen.install.record import NAME, Record, parse_record
from pav2gen.install.tree.trees import PAV2, VllmTree
from pav2gen.output.disk import Disk


@dataclass(frozen=True)
class SourceState:
    """A source file of vLLM, with and without the edits of an install.

    now: the bytes of the file.
    original: the bytes of the file without the edits of the install.
    patched: whether the file contains the edits of an install.
    edited: whether somebody edited the file after the install. ``now`` and ``original`` both contain that person's
    edits.
    """

    now: bytes
    original: bytes
    patched: bool
    edited: bool


@dataclass(frozen=True)
class TreeState:
    """The state of a vLLM tree before a command changes the tree.

    record: the record of the install, or None if nothing is installed.
    sources: maps the path of each source file that an install edits, relative to vLLM's folder, to its state.
    files: maps the path of each file in the package's folder ``pav2/`` to its SHA-256, or to an empty string for
    anything other than a regular file. The file of the record and ``leftovers`` are not included.
    leftovers: the paths in ``pav2/`` of caches, compiled files and temporary files that no install put there.
    """

    tree: VllmTree
    record: Record | None
    sources: Mapping[str, SourceState]
    files: Mapping[str, str]
    leftovers: tuple[str, ...]

    def edited(self) -> list[str]:
        """Return the paths of the installed files that were removed or edited since the install.

        The paths are relative to the package's folder ``pav2/``.
        """
        if self.record is None:
            return []
        return [path for path in sorted(self.record.files) if self.files.get(path) not in self.record.known(path)]

    def strangers(self) -> list[str]:
        """Return the sorted paths of the files in the package's folder that no install put there."""
        ours = {path for state in (self.record.states() if self.record else ()) for path in state.files}
        return sorted(self.files.keys() - ours)


def read_tree_state(tree: VllmTree) -> TreeState:
    """Read the record, the installed files and vLLM's source files in ``tree``.

    Raises UserError if vLLM's file ``OPS`` or ``DECODE`` is missing, if a file cannot be read, or if the record is
    damaged. Also raises UserError if somebody edited the lines that an install inserted, because edited lines cannot be
    removed.
    """
    disk = Disk(tree.pav2, tree.where(PAV2))
    if tree.pav2.is_symlink():
        raise UserError("is a symbolic link, but the package needs a folder of this name; remove it", disk.shown)
    files = {}
    for path in disk.walk():
        there = disk.at(path)
        files[path] = there.digest if there else ""
    record_file = disk.at(NAME)
    record = parse_record(record_file.content, f"{disk.shown}/{NAME}") if record_file else None
    sources = {path: _source(tree, path, record) for path in _sources(tree)}
    installed = {path for state in (record.states() if record else ()) for path in state.files}
    leftovers = {path for path in files.keys() - installed if is_leftover(path) or ASIDE in path}
    return TreeState(tree, record, sources, {p: files[p] for p in files.keys() - leftovers - {NAME}}, tuple(leftovers))


def _sources(tree: VllmTree) -> list[str]:
    """Return the paths of the source files that an install edits in ``tree``, relative to vLLM's folder.

    Raises UserError if ``OPS`` or ``DECODE`` is missing. ``LAYER`` and ``BACKEND`` are left out if they are missing.
    """
    for path in (OPS, DECODE):
        if not tree.source(path).is_file():
            raise UserError(
                "does not exist; only vLLM 0.4.3 to 0.11, which have this file, can be patched", tree.where(path)
            )
    return [OPS, DECODE, *(path for path in (LAYER, BACKEND) if tree.source(path).is_file())]


def _source(tree: VllmTree, path: str, record: Record | None) -> SourceState:
    """Read vLLM's source file ``path``, and compute its content without the edits of the install.

    record: the record of the install, or None if nothing is installed.

    Raises UserError if the edits cannot be undone.
    """
    try:
        now = tree.source(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", tree.where(path)) from error
    edits = [state.edits[path] for state in (record.states() if record else ()) if path in state.edits]
    if not edits or sha256(now) in {edit.before for edit in edits}:
        return SourceState(now, now, patched=False, edited=False)
    bom = codecs.BOM_UTF8 if now.startswith(codecs.BOM_UTF8) else b""
    text = now[len(bom) :].decode(errors="surrogateescape")
    for edit in edits:
        original = reverse(text, edit.hunks)
        if original is not None:
            content, edited = bom + original.encode(errors="surrogateescape"), sha256(now) != edit.after
            if edited or sha256(content) == edit.before:
                return SourceState(now, content, patched=True, edited=edited)
    if HOOKS not in text:  # someone removed the inserted lines by hand, or by a checkout
        return SourceState(now, now, patched=False, edited=True)
    raise UserError(
        "the lines that pav2gen inserted were edited; remove them by hand, then run the command again",
        tree.where(path),
    )


def tidy(found: TreeState, files: Collection[str] = ()) -> None:
    """Delete temporary files, caches of deleted files, and empty folders from a vLLM tree.

    files: the paths of the files that stay installed, relative to the package's folder.
    """
    folders = {os.path.dirname(path) for path in files}
    for path in found.leftovers:
        folder = os.path.dirname(path)
        if ASIDE in path or folder.removesuffix("__pycache__").rstrip("/") not in folders:
            with suppress(OSError):
                (found.tree.pav2 / path).unlink()
    for path in found.sources:
        for left in found.tree.source(path).parent.glob(f"{ASIDE}*"):
            with suppress(OSError):
                left.unlink()
    for inside, _, _ in os.walk(found.tree.pav2, topdown=False):
        with suppress(OSError):
            os.rmdir(inside)
