"""Reads the generated package on the disk, and compares the package's files with the files of a new build."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.output import journal
from pav2gen.output.disk import Disk, OnDisk
from pav2gen.render import manifest
from pav2gen.render.fileset import FileSet
from pav2gen.render.manifest import SHARED, Manifest
from pav2gen.render.manifest_reader import NotAManifest, parse

#: The folder of the generated package, if the user does not name another with ``--out``.
DEFAULT_FOLDER = Path("generated")


@dataclass(frozen=True)
class FileChange:
    """A file that a build adds, changes or removes.

    owner: the name of the spec that the file was generated from, or ``SHARED``.
    path: the path of the file, relative to the tree.
    old: what is at this path before the build, or None if nothing is there.
    new: the new content, or None if the build removes the file.
    digest: the SHA-256 of ``new``, or empty if ``new`` is None.
    ours: whether the path is free, or has content that an earlier build wrote. Anything else is replaced only with
    ``--force``.
    """

    owner: str
    path: str
    old: OnDisk | None
    new: bytes | None
    digest: str
    ours: bool

    @property
    def kind(self) -> str:
        """What the build does to the file, in one word: ``new``, ``changed`` or ``removed``."""
        return "removed" if self.new is None else "changed" if self.old else "new"

    @property
    def is_manifest(self) -> bool:
        """Whether the file is the manifest of its owner."""
        return self.path == manifest.path_of(self.owner)


@dataclass(frozen=True)
class Comparison:
    """The differences between a new build and the files on the disk.

    changes: the files that differ, sorted by path.
    unchanged: the number of files that are the same in the build and on the disk.
    """

    changes: tuple[FileChange, ...]
    unchanged: int

    def refusal(self, shown: str, force: bool) -> UserError | None:
        """Return the error that forbids the build, or None if the build may be written.

        A build must not replace a folder or a symbolic link. Without ``force``, a build must not replace or remove
        files that were edited or added by hand.

        shown: the name that messages give to the tree.
        force: whether files that were edited or added by hand may be lost.
        """
        taken = [change for change in self.changes if not change.ours]
        for change in taken:
            if change.old and not change.old.is_file:
                place = f"{shown}/{change.path}"
                return UserError(f"is {change.old.kind}, but the package needs a file of this name; remove it", place)
        if not taken or force:
            return None
        files = "1 file" if len(taken) == 1 else f"{len(taken)} files"
        names = ", ".join(change.path for change in taken[:10]) + (", ..." if len(taken) > 10 else "")
        lost = f"{files} edited or added by hand would be lost: {names}"
        return UserError(f"{lost}; nothing was written. To replace them, add --force", shown)


@dataclass(frozen=True)
class Tree:
    """A generated package on the disk.

    disk: the object that reads the files of the package.
    manifests: maps each owner to the owner's manifest. An owner is the name of a spec, or ``SHARED``.
    broken: maps each owner with an unusable MANIFEST.json to the reason why the file cannot be used.
    journal: the files that an interrupted build may have written, as ``journal.Entries``, or empty if no build was
    interrupted.
    incomplete: whether a build was interrupted while it wrote files.
    """

    disk: Disk
    manifests: Mapping[str, Manifest]
    broken: Mapping[str, str]
    journal: Mapping[str, Mapping[str, Sequence[str]]]
    incomplete: bool

    @property
    def specs(self) -> list[str]:
        """The names of the specs that have files in the package, sorted. Specs with a broken manifest are included."""
        return sorted({*self.manifests, *self.broken} - {SHARED})

    def refusal(self, force: bool) -> UserError | None:
        """Return the error to raise if the folder has files but no generated package. Otherwise, return None.

        Hidden files and ``__pycache__`` do not count.

        force: whether to return None even for such a folder.
        """
        if force or self.manifests or self.broken or self.journal or self.incomplete or not self.disk.root.is_dir():
            return None
        others = sorted(name for name in os.listdir(self.disk.root) if name[0] != "." and name != "__pycache__")
        if not others:
            return None
        names = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        return UserError(
            f"is not a generated package, and has other files: {names}. Name a new or an empty folder with --out; to "
            "build there nevertheless, add --force",
            self.disk.shown,
        )

    def sound_manifests(self, except_for: Collection[str] = ()) -> list[Manifest]:
        """Return the manifests of the specs in this tree, sorted by name.

        except_for: the names of the specs to leave out.

        Raises UserError if a manifest is broken, or has a format of another version of pav2gen that this version cannot
        read.
        """
        for owner in sorted(self.broken.keys() - {SHARED, *except_for}):
            place = f"{self.disk.shown}/{manifest.path_of(owner)}"
            raise UserError(f"{self.broken[owner]}; run: pav2gen build specs/{owner}.yaml --force", place)
        for owner, entry in sorted(self.manifests.items()):
            if entry.unfit and owner not in (SHARED, *except_for):
                place = f"{self.disk.shown}/{entry.path}"
                raise UserError(f"{entry.unfit}; run: pav2gen build specs/{owner}.yaml", place)
        return [entry for owner, entry in sorted(self.manifests.items()) if owner not in (SHARED, *except_for)]

    def compare(self, package: Mapping[str, FileSet]) -> Comparison:
        """Compare the files in the tree with the files of a new build.

        package: the new files of each owner. Files of other owners are not compared.

        Raises UserError if a symbolic link or a file is where a folder belongs, or if a file cannot be read.
        """
        changes, unchanged = [], 0
        for owner, files in package.items():
            known = self.known(owner)
            for path in files.keys() | known.keys():
                old, new = self.disk.at(path), files.get(path)
                if old and old.is_file and old.content == new:
                    unchanged += 1
                elif new is not None or (
                    old and old.is_file
                ):  # else the file is gone, or is a link or folder that is not ours
                    ours = old is None or (old.is_file and old.digest in known.get(path, ()))
                    digest = "" if new is None else files.digest(path)
                    changes.append(FileChange(owner, path, old, new, digest, ours))
        return Comparison(tuple(sorted(changes, key=lambda change: change.path)), unchanged)

    def known(self, owner: str) -> dict[str, set[str]]:
        """Return a dict from the path of each file of ``owner`` to the SHA-256 digests that an unedited file can have.

        The paths are relative to the tree.

        The digests come from the owner's manifest, and from the journal of an interrupted build if there is one.
        """
        known = {path: set(digests) for path, digests in self.journal.get(owner, {}).items()}
        if owner in self.manifests:
            entry = self.manifests[owner]
            for path, digest in {**entry.owned(), entry.path: entry.digest}.items():
                known.setdefault(path, set()).add(digest)
        return known

    def unsettled(self, owner: str) -> bool:
        """Whether an interrupted build left files of ``owner`` that do not match the owner's manifest."""
        entry = self.manifests.get(owner)
        owned = {**entry.owned(), entry.path: entry.digest} if entry else {}
        return any(self._digest(path) != owned.get(path) for path in self.journal.get(owner, ()))

    def _digest(self, path: str) -> str | None:
        standing = self.disk.at(path)
        return standing.digest if standing else None


def read_tree(out: Path) -> Tree:
    """Read the manifests and the journal of the generated package in the folder ``out``, which need not exist.

    Raises UserError if ``out`` is not a folder, cannot be read, or contains another generated package in a subfolder.
    """
    disk = Disk(Path(os.path.realpath(out)), os.fspath(out))
    if os.path.lexists(disk.root) and not disk.root.is_dir():
        raise UserError("is not a folder; name another one with --out", disk.shown)
    incomplete = _is_incomplete(disk)
    manifests, broken = {}, {}
    for owner in [SHARED, *(folder for folder in disk.folders() if folder != journal.ASIDE)]:
        standing = disk.at(manifest.path_of(owner))
        if standing is None:
            continue
        try:
            manifests[owner] = parse(owner, standing.content)
        except NotAManifest as reason:
            broken[owner] = str(reason)
            continue
        if owner and not manifests[owner].spec and not manifests[owner].unfit:
            where = f"{disk.shown}/{owner}"
            raise UserError("is a separate generated package, which cannot be inside another; move it elsewhere", where)
    return Tree(disk, manifests, broken, journal.read_journal(disk.root), incomplete)


def _is_incomplete(disk: Disk) -> bool:
    """Whether the package has the journal or the temporary folder of an interrupted build.

    Raises UserError if the journal is not a regular file, or if the temporary folder is not a folder.
    """
    found = {name: disk.at(name) for name in (journal.NAME, journal.ASIDE)}
    for name, kind in ((journal.NAME, "a file"), (journal.ASIDE, "a folder")):
        standing = found[name]
        if standing and standing.kind != kind:
            raise UserError(
                f"is {standing.kind}, but a build needs {kind} of this name; remove it", f"{disk.shown}/{name}"
            )
    return any(found.values())
