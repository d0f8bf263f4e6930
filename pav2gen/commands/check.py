"""Implements ``pav2gen check``: finds the differences between a generated package and its specs, and commands that
repair them.

In the names of this module, a "drift" is a difference between a package and its specs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pav2gen.commands.build import BuildOptions
from pav2gen.files import is_leftover
from pav2gen.output import journal, tree
from pav2gen.output.lock import shared
from pav2gen.output.tree import DEFAULT_FOLDER, FileChange, Tree
from pav2gen.reading.selection import Selection, load
from pav2gen.render.manifest import SHARED
from pav2gen.render.package import Package, render_package
from pav2gen.render.templates import Templates

#: The kinds of differences, in the order in which they are reported.
KINDS = ("incomplete", "hand-edited", "changed", "missing", "orphan")


@dataclass(frozen=True)
class Drift:
    """One difference between a package and its specs.

    kind: one of ``KINDS``.
    path: the file or folder that differs, relative to the package.
    note: further words about the difference for the user, or empty.
    owner: the name of the spec to build for the repair. The owner is ``SHARED`` for a file that all specs share, and
    None if a build does not repair the difference.
    blocked: whether a symbolic link or a folder has the path of a file to build. A build does not remove links or
    folders.
    """

    kind: str
    path: str
    note: str = ""
    owner: str | None = None
    blocked: bool = False


@dataclass(frozen=True)
class DriftReport:
    """All differences between a package and its specs, and the commands that repair them.

    shown: the name that messages give to the folder of the package.
    files: the number of files that a build would render.
    drifts: the differences, sorted by kind and path.
    repairs: the shell commands that repair the differences.
    """

    shown: str
    files: int
    drifts: tuple[Drift, ...]
    repairs: tuple[str, ...]


def check(paths: Sequence[Path], options: BuildOptions, whole: bool) -> DriftReport:
    """Compare the files of the package ``options.out`` with a new rendering of the specs at ``paths``, byte by byte.

    whole: whether ``paths`` are all specs of the project. If so, files of any other spec in the package are reported as
    orphans.

    Raises UserError for a bad spec, and for a package that cannot be read.
    """
    selections = load(paths)
    names = {chosen.spec.name for chosen in selections}
    with shared(options.out, options.on_wait):
        found = tree.read_tree(options.out)
        others = [
            entry
            for owner, entry in sorted(found.manifests.items())
            if owner not in {SHARED, *names} and not entry.unfit
        ]
        package = render_package(selections, others, options.templates or Templates())
        drifts = sorted(_drifts(found, package, whole), key=lambda drift: (KINDS.index(drift.kind), drift.path))
    files = sum(map(len, package.files.values()))
    return DriftReport(
        found.disk.shown, files, tuple(drifts), tuple(_repairs(drifts, selections, found.disk.shown, whole))
    )


def _drifts(found: Tree, package: Package, whole: bool) -> Iterator[Drift]:
    changes = found.compare(package.files).changes
    absent = {owner for owner, files in package.files.items() if _all_new(owner, changes) == len(files)}
    yield from (
        Drift("missing", f"{owner}/" if owner else "", "all of its files are missing", owner) for owner in absent
    )
    for owner in _cut_short(found):
        yield Drift("incomplete", journal.NAME, f"the build of {owner or 'the package'} was interrupted", owner)
    for change in changes:
        if change.owner not in absent:
            yield _drift(change, found)
    yield from _orphans(found, package, whole)


def _cut_short(found: Tree) -> list[str]:
    """Return the names of the specs whose build was interrupted. The list is empty if no build was interrupted, and
    ``[SHARED]`` if the interrupted specs are unknown.
    """
    return sorted(found.journal.keys() - {SHARED}) or ([SHARED] if found.incomplete else [])


def _all_new(owner: str, changes: Iterable[FileChange]) -> int:
    """Return how many of ``changes`` add a missing file of ``owner``, the name of a spec or ``SHARED``."""
    return sum(change.owner == owner and change.kind == "new" for change in changes)


def _drift(change: FileChange, found: Tree) -> Drift:
    """Return the difference that a build would repair with ``change``.

    found: the generated package on the disk.
    """
    if change.old is None:
        if change.is_manifest:
            return Drift("incomplete", change.path, "the build is incomplete without this file", change.owner)
        return Drift("missing", change.path, owner=change.owner)
    if not change.ours:
        if not change.old.is_file:
            return Drift("hand-edited", change.path, change.old.kind, change.owner, blocked=True)
        note = found.broken.get(change.owner, "") if change.is_manifest else ""
        return Drift("hand-edited", change.path, note, change.owner)
    if change.new is None:
        return Drift("orphan", change.path, "no longer rendered", change.owner)
    return Drift("changed", change.path, owner=change.owner)


def _orphans(found: Tree, package: Package, whole: bool) -> Iterator[Drift]:
    """Yield a difference for each file or folder on the disk that belongs to no spec in ``package``.

    whole: whether all specs of the project were given, as in ``check``.
    """
    strangers = set(found.specs) - package.files.keys()
    if whole:
        yield from (Drift("orphan", f"{name}/", "there is no such spec") for name in strangers)
    not_ours = {*strangers, journal.NAME, journal.ASIDE}
    known = {path for owner, files in package.files.items() for path in (*files, *found.known(owner))}
    for path in found.disk.walk():
        if path not in known and path.split("/")[0] not in not_ours and not _is_nobody_s(path):
            yield Drift("orphan", path, "no MANIFEST lists it")


def _is_nobody_s(path: str) -> bool:
    """Whether ``check`` ignores the file at ``path``: a cached, compiled or hidden file, or one in a hidden folder."""
    return is_leftover(path) or any(part.startswith(".") for part in path.split("/"))


def _repairs(drifts: Sequence[Drift], selections: Sequence[Selection], shown: str, whole: bool) -> Iterator[str]:
    """Yield the shell commands that repair ``drifts``.

    selections: the specs that were compared with the package.
    shown: the path of the package's folder, as written in the commands.
    whole: whether all specs of the project were given, as in ``check``.
    """
    out = [] if Path(shown) == DEFAULT_FOLDER else ["--out", shown]
    paths = {chosen.spec.name: str(chosen.path) for chosen in selections}
    owners = sorted({drift.owner for drift in drifts if drift.owner is not None})
    built = [paths.get(owner, f"specs/{owner}.yaml") for owner in owners if owner in paths or (owner and not whole)]
    blocked = [f"{shown}/{drift.path}" for drift in drifts if drift.blocked]
    if blocked:
        yield shlex.join(["rm", "-r", *blocked])
    if built or SHARED in owners:
        command = shlex.join(["pav2gen", "build", *(built or [str(selections[0].path)]), *out])
        edited = any(drift.kind == "hand-edited" and not drift.blocked for drift in drifts)
        yield f"{command} --force  # discards the edits by hand" if edited else command
    gone = {drift.path.rstrip("/") for drift in drifts if drift.owner is None and drift.path.endswith("/")}
    for name in sorted({*gone, *(owner for owner in owners if owner and whole and owner not in paths)}):
        yield shlex.join(["pav2gen", "remove", name, *out])
    loose = [f"{shown}/{drift.path}" for drift in drifts if drift.owner is None and not drift.path.endswith("/")]
    if loose:
        yield shlex.join(["rm", *loose])
