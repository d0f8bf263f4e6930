"""The one step that writes: all of a build's changes take their places, or none does.

New files are written aside first, in a folder beside the journal; then each takes its place by a rename, and a folder
that is new as a whole by a single one. So a full disk is met while the tree is still as it was. An error or Ctrl-C
undoes what was done; a build that is killed leaves its journal, from which the next build knows what is ours.

Only the journal is forced to the disk. To do the same for each file would cost more than all the rest of a build, and
buy little: what a power cut takes from a file, `check` names and `build --force` renders again.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Collection, Iterable
from functools import partial
from itertools import chain
from pathlib import PurePosixPath

from pav2gen.errors import UserError
from pav2gen.output import journal
from pav2gen.output.disk import Disk, OnDisk
from pav2gen.output.transaction import Transaction, write_new
from pav2gen.output.tree import Comparison, FileChange, Tree
from pav2gen.render.manifest import SHARED

#: What to do where a build failed and could not be undone.
REMEDY = "the package is incomplete; run the same build again"


def commit(tree: Tree, comparison: Comparison, owners: Collection[str], unsettled: Collection[str]) -> None:
    """Make the tree as a build of ``owners`` has it. Writes nothing where nothing differs.

    The folder of the tree exists and is locked. ``unsettled`` are other owners, whose build was cut short and is not
    repaired by this one: the journal keeps them. Raises UserError, with everything as it was before, where the tree
    cannot be written, or someone changed a file of it since it was compared.
    """
    if comparison.changes or tree.incomplete:
        _Commit(tree, comparison.changes, owners, unsettled).run()


class _Commit:
    """The steps of a commit."""

    def __init__(
        self, tree: Tree, changes: Iterable[FileChange], owners: Collection[str], unsettled: Collection[str]
    ) -> None:
        self._tree = tree
        self._root = tree.disk.root
        self._aside = self._root / journal.ASIDE
        self._owners = owners
        self._changes = sorted(changes, key=_order)
        self._unsettled = {owner: tree.journal[owner] for owner in unsettled}
        self._folders: set[str] = set()
        self._moved: list[str] = []

    def run(self) -> None:
        """All the steps: the journal before anything else changes, and its end as the last change."""
        undone = partial(journal.end, self._root, self._tree.journal)
        with Transaction(self._shown, REMEDY, undone) as transaction:
            journal.begin(self._root, journal.merged(self._tree.journal, _entries(self._changes)))
            for change in self._changes:
                if change.new is not None:
                    self._write_aside(change.path, change.new, change.old)
            for change in self._changes:
                if change.new is not None:
                    self._place(transaction, change.path, change.new, change.old)
                elif change.old:
                    transaction.remove(f"{self._aside}/{change.path}", f"{self._root}/{change.path}", change.old.digest)
            self._finish()

    def _shown(self, file: str) -> str:
        """The name of a file in messages. What is written aside is told as the file that it becomes."""
        path = file.removeprefix(os.fspath(self._root)).removeprefix(f"/{journal.ASIDE}")
        return self._tree.disk.shown + path

    def _write_aside(self, path: str, content: bytes, old: OnDisk | None) -> None:
        file = f"{self._aside}/{path}"
        folder = os.path.dirname(file)
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        write_new(file, content, old)

    def _place(self, transaction: Transaction, path: str, content: bytes, old: OnDisk | None) -> None:
        """Move a file, or the topmost folder above it that the tree lacks, from aside to its place."""
        if path.startswith(tuple(self._moved)):
            return
        top = self._missing_folder(path) or path
        aside, place = f"{self._aside}/{top}", f"{self._root}/{top}"
        if top != path:
            self._moved.append(f"{top}/")
            transaction.place_folder(aside, place)
        else:
            transaction.place(aside, place, content, old.digest if old else "")

    def _finish(self) -> None:
        """Folders left empty go, then the journal: the last change of a build."""
        journaled = (files for owner, files in self._tree.journal.items() if owner in self._owners)
        removed = {path for path in chain(*journaled)} | {c.path for c in self._changes if c.new is None}
        _tidy(Disk(self._root, self._tree.disk.shown), removed)
        journal.end(self._root, self._unsettled)

    def _missing_folder(self, path: str) -> str:
        """The topmost folder on the way to ``path`` that the tree lacks, empty if it has them all."""
        end = path.find("/")
        while end >= 0:
            folder = f"{self._root}/{path[:end]}"
            if folder not in self._folders:
                if not os.path.isdir(folder):
                    return path[:end]
                self._folders.add(folder)
            end = path.find("/", end + 1)
        return ""


def _order(change: FileChange) -> tuple[bool, bool, bool, str]:
    """New files, then removals, then the manifests, the shared one last: no manifest is ahead of its files."""
    return (change.is_manifest, change.is_manifest and change.owner == SHARED, change.new is None, change.path)


def _entries(changes: Iterable[FileChange]) -> dict[str, dict[str, list[str]]]:
    entries: dict[str, dict[str, list[str]]] = {}
    for change in changes:
        digests = (change.old.digest if change.old else "", change.digest)
        entries.setdefault(change.owner, {})[change.path] = [digest for digest in digests if digest]
    return entries


def _tidy(disk: Disk, removed: Iterable[str]) -> None:
    """Drop what Python compiled from files that are gone, and the folders that they leave empty."""
    for path in sorted(removed, reverse=True):
        if os.path.lexists(f"{disk.root}/{path}"):
            continue
        folder, _, name = path.rpartition("/")
        cache = f"{folder}/__pycache__".lstrip("/")
        if _is_own_folder(disk, cache):
            pattern = f"{glob.escape(f'{disk.root}/{cache}')}/{glob.escape(name.removesuffix('.py'))}.*.pyc"
            for compiled in glob.glob(pattern):
                os.unlink(compiled)
        for empty in (cache, *(above.as_posix() for above in PurePosixPath(path).parents if above.name)):
            if _is_own_folder(disk, empty):
                with contextlib.suppress(OSError):
                    os.rmdir(f"{disk.root}/{empty}")


def _is_own_folder(disk: Disk, folder: str) -> bool:
    """Whether a folder of the tree is there, with no link on the way to it: what lies beyond a link is not ours."""
    with contextlib.suppress(UserError):
        return disk.has_folder(folder)
    return False
