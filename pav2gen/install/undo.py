"""Implements ``pav2gen uninstall``: removes the generated package from vLLM trees, and undoes the edits there.

If nobody edited files since the install, all bytes of each tree are then as before the install.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pav2gen.files import sha256
from pav2gen.install.apply import check_ours
from pav2gen.install.editing.transaction import Change, transaction
from pav2gen.install.editing.unified_diff import unified
from pav2gen.install.record import NAME
from pav2gen.install.tree.tree_state import TreeState, read_tree_state, tidy
from pav2gen.install.tree.trees import VllmTree, find_trees
from pav2gen.output.lock import OnWait, locked, no_wait


@dataclass(frozen=True)
class Undone:
    """The changes of ``uninstall`` in one vLLM tree, made or, with ``--dry-run``, only computed.

    installed: whether the tree had an install.
    restored: the paths of the vLLM source files that become byte for byte as they were before the install.
    edited: the paths of the vLLM source files that somebody edited after the install. The files keep these edits.
    kept: the paths of the files in the package's folder that stay, because no install wrote these files.
    diff: the changes of vLLM's source files, as a unified diff.
    """

    tree: VllmTree
    installed: bool
    restored: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    diff: str = ""


def uninstall(path: Path, dry_run: bool = False, force: bool = False, on_wait: OnWait = no_wait) -> list[Undone]:
    """Remove the generated package from the vLLM trees at ``path``, and undo the edits of vLLM's source files.

    A source file that nobody edited since the install gets its old bytes back. From an edited file, only the inserted
    lines are removed.

    dry_run: whether to compute the changes without making them.
    force: whether installed files that somebody edited by hand may be removed.
    on_wait: a function that is called before the command waits for another command that has locked a tree.

    Raises UserError, and changes nothing, if the inserted lines were edited, or if a file cannot be written. Without
    ``force``, also raises UserError if somebody edited an installed file by hand.
    """
    trees = find_trees(path)
    with ExitStack() as held:
        for tree in trees:
            held.enter_context(locked(tree.folder, on_wait))
        found = [read_tree_state(tree) for tree in trees]
        for each in found:
            check_ours(each, force)
        changes = {change.path: change for each in found if each.record for change in _changes(each)}
        if not dry_run:
            with transaction(changes.values(), str(path)):
                for each in found:
                    tidy(each)
    return [_undone(each) for each in found]


def _changes(found: TreeState) -> list[Change]:
    """Return the changes that remove an install from the tree ``found``, in the order in which they are made."""
    tree = found.tree
    patched = {path: source for path, source in found.sources.items() if source.patched}
    ours = found.files.keys() - set(found.strangers())
    return [  # vLLM's source files come first, so that they never call a removed file
        *(Change(tree.source(path), source.original, sha256(source.now)) for path, source in patched.items()),
        *(Change(tree.pav2 / path, None, found.files[path]) for path in sorted(ours)),
        Change(tree.pav2 / NAME, None),
    ]


def _undone(found: TreeState) -> Undone:
    if found.record is None:
        return Undone(found.tree, installed=False)
    sources = found.sources.items()
    return Undone(
        found.tree,
        installed=True,
        restored=tuple(path for path, source in sources if source.patched and not source.edited),
        edited=tuple(path for path, source in sources if source.edited),
        kept=tuple(found.strangers()),
        diff="".join(unified(f"vllm/{path}", source.now, source.original) for path, source in sources),
    )
