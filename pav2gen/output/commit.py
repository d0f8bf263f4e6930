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
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.output import journal
from pav2gen.output.disk import OnDisk
from pav2gen.output.tree import Comparison, FileChange, Tree
from pav2gen.render.manifest import SHARED


def commit(tree: Tree, comparison: Comparison, owners: Collection[str], unsettled: Collection[str]) -> None:
    """Make the tree as a build of ``owners`` has it. Writes nothing where nothing differs.

    ``unsettled`` are other owners, whose build was cut short and is not repaired by this one: the journal keeps them.
    Raises UserError, with everything as it was before, where the tree cannot be written.
    """
    if not comparison.changes and not tree.incomplete:
        return
    work = _Commit(tree, comparison.changes, owners, unsettled)
    try:
        work.run()
    except BaseException as error:
        whole = work.roll_back()
        if isinstance(error, OSError):
            raise _failure(tree, error, whole) from error
        raise


def _failure(tree: Tree, error: OSError, whole: bool) -> UserError:
    file = os.fspath(error.filename or tree.disk.root)
    path = file.removeprefix(os.fspath(tree.disk.root)).removeprefix(f"/{journal.ASIDE}")
    state = "everything is as it was" if whole else "the package is incomplete; run the same build again"
    return UserError(f"cannot be written ({error.strerror}); {state}", tree.disk.shown + path)


class _Commit:
    """The steps of a commit. Each notes how it is undone before it is done; undoing what was not done is harmless."""

    def __init__(
        self, tree: Tree, changes: Iterable[FileChange], owners: Collection[str], unsettled: Collection[str]
    ) -> None:
        self._tree = tree
        self._root = tree.disk.root
        self._aside = self._root / journal.ASIDE
        self._owners = owners
        self._changes = sorted(changes, key=_order)
        self._unsettled = {owner: tree.journal[owner] for owner in unsettled}
        self._undo: list[Callable[[], None]] = []
        self._folders: set[str] = set()
        self._moved: list[str] = []

    def run(self) -> None:
        """All the steps."""
        self._begin()
        for change in self._changes:
            if change.new is not None:
                self._write_aside(change.path, change.new, change.old)
        for change in self._changes:
            if change.new is not None:
                self._place(change.path, change.old)
            elif change.old:
                self._remove(change.path, change.old)
        self._finish()

    def roll_back(self) -> bool:
        """Undo, last step first. Returns False, with the journal still there, if something could not be undone."""
        try:
            while self._undo:
                self._undo.pop()()
        except OSError:
            return False
        return True

    def _begin(self) -> None:
        """The journal, before anything else changes."""
        for folder in (*reversed(self._root.parents), self._root):
            if not folder.is_dir():
                self._undo.append(partial(_remove_folder, folder))
                os.mkdir(folder)
        self._undo.append(partial(journal.end, self._root, self._tree.journal))
        journal.begin(self._root, journal.merged(self._tree.journal, _entries(self._changes)))

    def _write_aside(self, path: str, content: bytes, old: OnDisk | None) -> None:
        file = f"{self._aside}/{path}"
        folder = os.path.dirname(file)
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        _write(file, content, old)

    def _place(self, path: str, old: OnDisk | None) -> None:
        """Move a file, or the topmost folder above it that the tree lacks, from aside to its place."""
        if path.startswith(tuple(self._moved)):
            return
        top = self._missing_folder(path) or path
        aside, place = f"{self._aside}/{top}", f"{self._root}/{top}"
        if top != path:
            self._moved.append(f"{top}/")
        self._undo.append(partial(self._put_back, path, old) if old else partial(_move_back, place, aside))
        os.replace(aside, place)

    def _remove(self, path: str, old: OnDisk) -> None:
        self._undo.append(partial(self._put_back, path, old))
        os.unlink(f"{self._root}/{path}")

    def _finish(self) -> None:
        """Folders left empty go, then the journal: the last change of a build."""
        journaled = (files for owner, files in self._tree.journal.items() if owner in self._owners)
        _tidy(self._root, {path for path in chain(*journaled)} | {c.path for c in self._changes if c.new is None})
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

    def _put_back(self, path: str, old: OnDisk) -> None:
        """Restore a file that was replaced or removed."""
        if self._tree.disk.at(path) == old:
            return
        aside, place = f"{self._aside}/{path}", f"{self._root}/{path}"
        for file in (aside, place):
            os.makedirs(os.path.dirname(file), exist_ok=True)
        if os.path.lexists(aside):
            os.unlink(aside)
        _write(aside, old.content, old)
        os.replace(aside, place)


def _order(change: FileChange) -> tuple[bool, bool, bool, str]:
    """New files, then removals, then the manifests, the shared one last: no manifest is ahead of its files."""
    return (change.is_manifest, change.is_manifest and change.owner == SHARED, change.new is None, change.path)


def _entries(changes: Iterable[FileChange]) -> dict[str, dict[str, list[str]]]:
    entries: dict[str, dict[str, list[str]]] = {}
    for change in changes:
        digests = (change.old.digest if change.old else "", change.digest)
        entries.setdefault(change.owner, {})[change.path] = [digest for digest in digests if digest]
    return entries


def _write(file: str, content: bytes, old: OnDisk | None) -> None:
    """Write a file that is not there yet, with the mode bits of ``old``, or those of any new file."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        journal.write_all(handle, content)
        if old:
            os.fchmod(handle, old.mode)
    finally:
        os.close(handle)


def _move_back(place: str, aside: str) -> None:
    if os.path.lexists(place) and not os.path.lexists(aside):
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        os.replace(place, aside)


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _tidy(root: Path, removed: Iterable[str]) -> None:
    """Drop what Python compiled from files that are gone, and the folders that they leave empty."""
    for path in sorted(removed, reverse=True):
        if os.path.lexists(f"{root}/{path}"):
            continue
        folder, _, name = path.rpartition("/")
        cache = f"{root}/{folder}/__pycache__"
        for compiled in glob.glob(f"{glob.escape(cache)}/{glob.escape(name.removesuffix('.py'))}.*.pyc"):
            os.unlink(compiled)
        folders = [f"{root}/{above}" for above in Path(path).parents if above.name]
        for empty in (cache, *folders):
            with contextlib.suppress(OSError):
                os.rmdir(empty)
