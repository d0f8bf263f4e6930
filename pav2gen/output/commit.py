"""Writes the changes of a build to the generated package: either all changes take effect, or none.

New files are first written to a temporary folder, so that a full disk is noticed before the package changes. After
that, each file is renamed to its final place. A folder that is entirely new is renamed as a whole. An error or Ctrl-C
undoes all changes. If the process is killed, the journal stays on the disk. The journal is a file that lists the files
that the build changes.

Only the journal is synced to the disk (with ``fsync``), because syncing every file would be slow. After a power cut,
``pav2gen check`` names the damaged files, and ``pav2gen build --force`` repairs them.
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

#: The last words of the error message if a build fails and its changes cannot be undone.
REMEDY = "the package is incomplete; run the same build again"


def commit(tree: Tree, comparison: Comparison, owners: Collection[str], unsettled: Collection[str]) -> None:
    """Write the changes in ``comparison`` to the tree.

    The folder of the tree must exist, and this command must have locked the folder.

    owners: the owners whose files this build renders or removes.
    unsettled: other owners with files that an interrupted build left behind. This build does not repair these files,
    and keeps their entries in the journal.

    Raises UserError, after undoing all changes, if a file cannot be written, or if someone changed a file after the
    comparison.
    """
    if comparison.changes or tree.incomplete:
        _Commit(tree, comparison.changes, owners, unsettled).run()


class _Commit:
    """Writes the changes of one build, its journal and its temporary folder."""

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
        """Write all changes. The journal is written before the first change, and removed after the last one."""
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
        """Return the name that messages give to ``file``. A file in the temporary folder has the name of its final
        place.
        """
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
        """Move a new file from the temporary folder to its final place.

        If the final folder is missing, the topmost missing folder is moved as a whole, with all new files in it.
        """
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
        """Remove the temporary folder, the journal, and the compiled files and empty folders of removed files.

        If the journal has entries of owners that this build does not repair, the journal stays.
        """
        journaled = (files for owner, files in self._tree.journal.items() if owner in self._owners)
        removed = {path for path in chain(*journaled)} | {c.path for c in self._changes if c.new is None}
        _tidy(Disk(self._root, self._tree.disk.shown), removed)
        journal.end(self._root, self._unsettled)

    def _missing_folder(self, path: str) -> str:
        """Return the topmost folder of the file path ``path`` that does not exist, or an empty string if all exist."""
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
    """Return the sort key of a change. The order is: files to write, files to remove, manifests of specs, the shared
    manifest.

    With this order, all files that a new manifest lists are written before the manifest.
    """
    return (change.is_manifest, change.is_manifest and change.owner == SHARED, change.new is None, change.path)


def _entries(changes: Iterable[FileChange]) -> dict[str, dict[str, list[str]]]:
    entries: dict[str, dict[str, list[str]]] = {}
    for change in changes:
        digests = (change.old.digest if change.old else "", change.digest)
        entries.setdefault(change.owner, {})[change.path] = [digest for digest in digests if digest]
    return entries


def _tidy(disk: Disk, removed: Iterable[str]) -> None:
    """Delete the compiled files (``.pyc``) of the source files ``removed``.

    Also delete the folders that contained these files, if the folders are then empty.
    """
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
    """Whether ``folder`` exists in the tree and no part of its path is a symbolic link."""
    with contextlib.suppress(UserError):
        return disk.has_folder(folder)
    return False
