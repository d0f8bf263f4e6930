"""Implements ``pav2gen install``: puts a generated package into vLLM trees, completely or not at all."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pav2gen.errors import UserError
from pav2gen.files import sha256
from pav2gen.install.editing.hunks import hunks
from pav2gen.install.editing.patch import Fork, PatchedSources, patch_sources
from pav2gen.install.editing.transaction import Change, transaction
from pav2gen.install.editing.unified_diff import unified
from pav2gen.install.package_contents import Choice, PackageContents, package_contents
from pav2gen.install.payload.structure import LAYER
from pav2gen.install.record import NAME, Record, RecordedEdit
from pav2gen.install.tree.decode_callers import calls_forward_decode, foreign_overrides
from pav2gen.install.tree.repository import Repository
from pav2gen.install.tree.tree_state import TreeState, read_tree_state, tidy
from pav2gen.install.tree.trees import PAV2, VllmTree, find_trees
from pav2gen.install.tree.trial_import import try_import
from pav2gen.install.tree.unchecked_bytecode import unchecked
from pav2gen.output.lock import OnWait, locked, no_wait, shared
from pav2gen.output.tree import DEFAULT_FOLDER
from pav2gen.render.kernels import GENERATOR

#: The modules of the folder ``payload`` that an install copies into a tree, together with the generated package.
MODULES = ("hooks", "cache_hooks", "prefix_hooks", "softcap_hooks", "layer_features", "serving")


@dataclass(frozen=True)
class InstallOptions:
    """The options of ``pav2gen install``.

    generated: the folder of the generated package.
    choice: the part of the package to install, such as some of its specs.
    dry_run: whether to compute the changes without making them.
    commit: whether to commit the changed files in the git repository that contains the vLLM trees.
    force: whether installed files that somebody edited by hand may be replaced.
    writer: which KV caches the generated cache writers fill. "auto": only caches of a dtype that vLLM's own writer
    cannot write. "always": all caches for which a cache writer is installed.
    python: the Python interpreter that will run vLLM. This interpreter imports the package as a test before the first
    file is written. If ``python`` is empty, this test is skipped.
    on_wait: a function that is called before the install waits for another command that has locked a tree or the
    package.
    """

    generated: Path = DEFAULT_FOLDER
    choice: Choice = field(default_factory=Choice)
    dry_run: bool = False
    commit: bool = False
    force: bool = False
    writer: str = "auto"
    python: str = sys.executable
    on_wait: OnWait = no_wait


@dataclass(frozen=True)
class PlannedInstall:
    """What an install will change in one vLLM tree.

    fork: which of the tree's own attention functions work.
    changes: the files to write or to remove, in the order in which an install makes these changes.
    edited: the paths of the vLLM source files that will call the kernels, relative to the tree.
    diff: the changes of vLLM's source files, as a unified diff.
    notes: sentences that warn the user about this tree.
    """

    tree: VllmTree
    fork: Fork
    changes: tuple[Change, ...]
    edited: tuple[str, ...]
    diff: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The changes that an install made, or that its dry run found.

    contents: the installed files, and the manifests of the installed specs.
    trees: what changed in each vLLM tree.
    imported: whether the Python that will run vLLM has imported the package as a test.
    commit: the short hash of the git commit, or empty if nothing was committed.
    """

    contents: PackageContents
    trees: tuple[PlannedInstall, ...]
    imported: bool
    commit: str

    @property
    def changed(self) -> bool:
        """Whether the install changed any file. After a dry run: whether an install would change any file."""
        return any(planned.changes for planned in self.trees)


def install(path: Path, options: InstallOptions) -> Outcome:
    """Install the part ``options.choice`` of a generated package into all vLLM trees at ``path``.

    An earlier install is replaced.

    Before the first file is written, all changes are computed, and the package is imported as a test.

    Raises UserError if a tree differs from every vLLM that pav2gen knows, or if the package is damaged. Also raises
    UserError if files that somebody edited by hand would be lost, or if a file cannot be written. In all these cases,
    nothing is changed.
    """
    trees = find_trees(path)
    with ExitStack() as held:
        held.enter_context(shared(options.generated, options.on_wait))
        for tree in trees:
            held.enter_context(locked(tree.folder, options.on_wait))
        repository = Repository(trees) if options.commit and not options.dry_run else None
        chosen = package_contents(options.generated, options.choice, MODULES)
        found = [read_tree_state(tree) for tree in trees]
        planned = tuple(_plan(each, chosen, options) for each in found)
        changes = _together(planned)
        imported = bool(changes and options.python) and try_import(chosen.files, options.python)
        commit = ""
        if changes and not options.dry_run:
            with transaction(changes, str(path)):
                commit = repository.commit(_paths(changes), _message(chosen)) if repository else ""
        if not options.dry_run:
            for each in found:
                tidy(each, chosen.files)
    return Outcome(chosen, planned, imported, commit)


def _plan(found: TreeState, chosen: PackageContents, options: InstallOptions) -> PlannedInstall:
    """Compute what an install changes in the tree ``found``."""
    check_ours(found, options.force, chosen.files)
    tree = found.tree
    originals = {path: source.original for path, source in found.sources.items()}
    edited = patch_sources(originals, tree.shown, options.writer)
    record = _record(found, chosen, edited, options)
    sources = {path: edited.sources.get(path, source.original) for path, source in found.sources.items()}
    return PlannedInstall(
        tree,
        edited.fork,
        tuple(_changes(found, chosen.files, sources, record)),
        tuple(edited.sources),
        "".join(unified(f"vllm/{path}", found.sources[path].now, content) for path, content in sources.items()),
        tuple(_notes(found, edited)),
    )


def check_ours(found: TreeState, force: bool, files: Collection[str] = ()) -> None:
    """Raise UserError if the folder ``pav2/`` of the tree ``found`` has files that must not be replaced or removed.

    The reasons are: no install made the folder; a link, a file or a folder blocks the path of a file to install; or,
    without ``force``, somebody edited files by hand.

    files: the paths of the files to install, relative to ``pav2/``, or empty for ``uninstall``.
    force: whether files that somebody edited by hand may be replaced or removed.
    """
    shown = found.tree.where(PAV2)
    if found.record is None and found.files:
        raise UserError(f"exists, but pav2gen did not install it (it has no {NAME}); move it away", shown)
    for folder in sorted({str(parent) for path in files for parent in PurePosixPath(path).parents}):
        if folder in found.files:
            raise UserError(
                "is not a folder, but the package needs a folder of this name; remove it", f"{shown}/{folder}"
            )
    for path in sorted(path for path in files if found.files.get(path) == ""):  # without a digest
        raise UserError(
            "is not a regular file, but the package needs a file of this name; remove it", f"{shown}/{path}"
        )
    edited = [path for path in found.edited() if path in found.files]
    edited += [path for path in found.strangers() if path in files]
    if edited and not force:
        lost = f"{len(edited)} file{'s' * (len(edited) > 1)} edited by hand would be lost: {', '.join(edited[:5])}"
        raise UserError(f"{lost}; nothing was changed. To replace them, add --force", shown)


def _record(found: TreeState, chosen: PackageContents, edited: PatchedSources, options: InstallOptions) -> Record:
    originals = {path: found.sources[path].original for path in edited.sources}
    return Record(
        generator=GENERATOR,
        specs={name: {"sha256": m.spec["sha256"], "kernels": len(m.rows)} for name, m in chosen.specs.items()},
        all_specs=not options.choice.specs,
        min_seq_len=options.choice.min_seq_len,
        tests=options.choice.tests,
        prebuilt=options.choice.prebuilt.name if options.choice.prebuilt else "",
        digest=chosen.digest,
        files={path: sha256(content) for path, content in chosen.files.items()},
        writer=options.writer,
        operators=chosen.operators(),
        edits={path: _edit(originals[path], content) for path, content in edited.sources.items()},
    )


def _edit(before: bytes, after: bytes) -> RecordedEdit:
    return RecordedEdit(sha256(before), sha256(after), hunks(before.decode("utf-8-sig"), after.decode("utf-8-sig")))


def _changes(
    found: TreeState, files: Mapping[str, bytes], sources: Mapping[str, bytes], record: Record
) -> Iterator[Change]:
    """Yield the changes that install ``files`` and ``sources`` into the tree ``found``, in the order in which they are
    made.

    files: maps the path of each file of the package, relative to ``pav2/``, to its content.
    sources: maps the path of each source file of vLLM, relative to the tree, to its new content.
    record: the record of the new install.

    Nothing is yielded if the tree already has this content and this record.
    """
    tree, there = found.tree, found.record
    place = tree.pav2 / NAME
    new = [
        Change(tree.pav2 / path, content, found.files.get(path, ""))
        for path, content in files.items()
        if found.files.get(path) != record.files[path]
    ]
    new.sort(key=lambda change: change.path.name == "dispatch.py")
    edits = [
        Change(tree.source(path), text, sha256(found.sources[path].now))
        for path, text in sources.items()
        if text != found.sources[path].now
    ]
    before = {path for state in (there.states() if there else ()) for path in state.files}
    gone = [
        Change(tree.pav2 / path, None, found.files[path])
        for path in sorted((before & found.files.keys()) - files.keys())
    ]
    # The first record has the files of the old and the new install, in case the command is killed. vLLM's sources are
    # edited only after all files of the package are written, and the old files are removed last, so that the sources
    # never call a missing file.
    if new or edits or gone or there != record:
        yield Change(place, record.under_way(there).content())
        yield from (*new, *edits, *gone)
        yield Change(place, record.content())


def _notes(found: TreeState, edited: PatchedSources) -> Iterator[str]:
    """Yield sentences that warn the user about the tree ``found``, such as a sentence for each file that was edited."""
    yield from edited.notes
    yield from foreign_overrides(found.tree)
    for path, source in found.sources.items():
        if source.edited:
            yield f"{path} was edited since the last install; these edits are kept"
        for file in unchecked(found.tree.source(path)):
            yield f"Python runs {file.name} without checking {path}; remove {file}"
    if found.strangers():
        yield f"{PAV2} has files that are not from pav2gen: {', '.join(found.strangers()[:5])}"
    if LAYER not in edited.sources:
        yield f"{LAYER} has no place to insert check_layer: a missing kernel is reported at the first call, not at load"
    if not calls_forward_decode(found.tree):
        yield "no backend of this tree calls PagedAttention.forward_decode; only direct calls of the operator take V2"


def _together(planned: Sequence[PlannedInstall]) -> list[Change]:
    """Return the changes of all trees as one list.

    Raises UserError if two trees share a file by symbolic links, and need different contents of this file.
    """
    changes = [change for plan in planned for change in plan.changes]
    last = {change.path: change for change in changes}
    for change in changes:
        if change.path.name != NAME and last[change.path].content != change.content:
            raise UserError("is shared by two trees that need different edits of it", str(change.path))
    return changes


def _paths(changes: Sequence[Change]) -> list[Path]:
    return list(dict.fromkeys(change.path for change in changes))


def _message(chosen: PackageContents) -> str:
    """Return the message of the git commit, with the names and digests of the installed specs."""
    names = ", ".join(chosen.specs)
    thresholds = " or ".join(map(str, chosen.thresholds()))
    lines = [f"  {name}: {len(m.rows)} kernels, spec sha256:{m.spec['sha256']}" for name, m in chosen.specs.items()]
    return (
        f"Install generated paged-attention V2 kernels ({names})\n\n"
        f"vllm/{PAV2}, by {GENERATOR}:\n" + "\n".join(lines) + f"\n  package sha256:{chosen.digest}\n\n"
        f"Decodes above {thresholds} tokens take V2 where a kernel serves the shape. "
        "PAV2_DISABLE=1 gives the old path back.\n"
    )
