"""Implements ``build`` and ``remove``: renders a package from spec files, and writes it in one atomic step."""

from __future__ import annotations

import keyword
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.output import tree
from pav2gen.output.commit import commit
from pav2gen.output.lock import OnWait, locked, no_wait, shared
from pav2gen.output.tree import DEFAULT_FOLDER, FileChange, Tree
from pav2gen.reading.selection import Selection, load
from pav2gen.render.fileset import FileSet
from pav2gen.render.manifest import SHARED, Manifest
from pav2gen.render.package import render_package
from pav2gen.render.templates import Templates
from pav2gen.wording import did_you_mean, quoted


@dataclass(frozen=True)
class BuildOptions:
    """The options of ``build``, ``remove`` and ``check``.

    out: the folder of the generated package.
    filters: filters for the kernels to build, such as ``dtype=float16`` (see ``selection.select``).
    force: whether files that were edited by hand may be replaced or removed.
    dry_run: whether to compute the changes without writing them.
    templates: the templates of the generated files; None means pav2gen's own templates.
    on_wait: a function that is called once, before the command waits for another command that locks the package.
    """

    out: Path = DEFAULT_FOLDER
    filters: tuple[str, ...] = ()
    force: bool = False
    dry_run: bool = False
    templates: Templates | None = None
    on_wait: OnWait = no_wait


@dataclass(frozen=True)
class Outcome:
    """The changes that a build or a removal made, or, after a dry run, the changes that a real run would make.

    shown: the name that messages give to the folder of the package.
    kernels: maps the name of each spec that was built to the number of its kernels.
    changes: the files that were written or removed.
    unchanged: the number of files that already had the right content.
    notes: messages for the user, for example about settings that have no effect.
    refusal: after a dry run, the error that a real run would raise, or None if a real run would succeed.
    """

    shown: str
    kernels: Mapping[str, int]
    changes: tuple[FileChange, ...]
    unchanged: int
    notes: tuple[str, ...]
    refusal: UserError | None

    def count(self, kind: str) -> int:
        """Return the number of changed files whose change is of ``kind``: ``new``, ``changed`` or ``removed``."""
        return sum(change.kind == kind for change in self.changes)


def build(paths: Sequence[Path], options: BuildOptions) -> Outcome:
    """Build the specs at ``paths`` into the package ``options.out``. The files of other specs stay as they are.

    Raises UserError and writes nothing for a bad spec, a filter that selects no kernel, and a package that cannot be
    read or written. Without ``options.force``, also raises UserError if the build would replace files that were edited
    by hand, or if the folder has files and is not a generated package.
    """
    _check_name(options.out)
    selections = load(paths, options.filters)
    with _lock(options, create=True):
        found = tree.read_tree(options.out)
        others = found.sound_manifests([chosen.spec.name for chosen in selections])
        _check_parts(found, others, options)
        return _carry_out(found, selections, others, options)


def _lock(options: BuildOptions, create: bool = False) -> AbstractContextManager[None]:
    """Return a context manager that locks the package. The lock of a dry run lets other commands read the package.

    create: whether to make the folder of the package if it is missing.
    """
    if options.dry_run:
        return shared(options.out, options.on_wait)
    return locked(options.out, options.on_wait, create)


def _check_name(out: Path) -> None:
    """Raise UserError if the name of the folder ``out`` is not a valid name for a Python package."""
    name = Path(os.path.realpath(out)).name
    if not _importable(name):
        fit = re.sub(r"\W", "_", name)
        fit = fit if _importable(fit) else f"pav2_{fit}"
        raise UserError(f"is not a valid name for a Python package; take {quoted(fit)}", str(out))


def _importable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def remove(name: str, options: BuildOptions) -> Outcome:
    """Remove the files of a spec from the package ``options.out``, and the rows of the spec from the dispatch table.

    name: the name of the spec, or the path of its file.

    Raises UserError in the same cases as ``build``, and if the package has no spec of this name.
    """
    with _lock(options):
        found = tree.read_tree(options.out)
        found.sound_manifests()  # the removed spec's manifest must be valid too, because it lists the files to remove
        owner = _owner(name, found)
        return _carry_out(found, [], found.sound_manifests([owner]), options, removed=owner)


def _check_parts(found: Tree, others: Iterable[Manifest], options: BuildOptions) -> None:
    """Raise UserError if the package would contain both whole specs and parts of specs (chosen by ``--filter``).

    Also raise UserError if a build with ``--filter`` would write to the default folder.

    others: the manifests of the specs in the package that are not built now.
    """
    shown = found.disk.shown
    whole = [owner for owner, entry in found.manifests.items() if owner != SHARED and not entry.filter]
    if options.filters and (whole or options.out == DEFAULT_FOLDER):
        holds = f" ({shown} has whole specs: {', '.join(sorted(whole))})" if whole else ""
        raise UserError(
            f"--filter builds a part of a package, which needs a separate folder{holds}; name one with --out"
        )
    for entry in others:
        if entry.filter and not options.filters:
            part = shlex.join(f"--filter={text}" for text in entry.filter)
            raise UserError(
                f"has only a part of {entry.owner} ({part}); name another folder for whole specs with --out", shown
            )


def _carry_out(
    found: Tree, selections: Sequence[Selection], others: Sequence[Manifest], options: BuildOptions, removed: str = ""
) -> Outcome:
    """Render the package, and compare the result with the files on the disk. Except in a dry run, write the files that
    differ.

    selections: the specs to render, with their kernels.
    others: the manifests of the specs whose files stay as they are.
    removed: the name of the spec to remove, or empty for a build.
    """
    package = render_package(selections, others, options.templates or Templates())
    files = {removed: FileSet(), **package.files} if removed else package.files
    comparison = found.compare(files)
    refusal = comparison.refusal(found.disk.shown, options.force) or found.refusal(options.force)
    if refusal and not options.dry_run:
        raise refusal
    unsettled = sorted(owner for owner in found.journal.keys() - files.keys() if found.unsettled(owner))
    if not options.dry_run:
        commit(found, comparison, files.keys(), unsettled)
    return Outcome(
        shown=found.disk.shown,
        kernels={chosen.spec.name: len(chosen.built) for chosen in selections},
        changes=comparison.changes,
        unchanged=comparison.unchanged,
        notes=(
            *package.clashes,
            *_unused_settings(selections),
            *(f"{owner} is still incomplete: its build was interrupted" for owner in unsettled),
        ),
        refusal=refusal,
    )


def _unused_settings(selections: Iterable[Selection]) -> Iterator[str]:
    """Yield a note for the user about each spec with CUDA settings that its extend kernels ignore."""
    for spec in (chosen.spec for chosen in selections):
        if spec.cuda and "extend" in spec.operators:
            names = " and ".join(f"cuda.{name}" for name in spec.cuda)
            yield f"{spec.where('cuda')}: {names} apply to decode kernels alone; extend kernels keep the plan's layout"


def _owner(name: str, found: Tree) -> str:
    """Return the name of the spec that the user means by ``name``. Raises UserError if the package has no such spec.

    name: the name of the spec, or a path that ends in the name of its file.
    found: the generated package on the disk.
    """
    built = sorted({*found.specs, *found.journal} - {SHARED})
    files = {entry.spec.get("file"): owner for owner, entry in found.manifests.items() if owner != SHARED}
    owner = name if name in built else files.get(Path(name).name, Path(name).stem)
    if owner not in built:
        hint = did_you_mean(name, built) if built else "nothing was built there"
        raise UserError(f"there is no spec {quoted(name)} in it; {hint}", found.disk.shown)
    return owner
