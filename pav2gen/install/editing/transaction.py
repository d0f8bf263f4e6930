"""Writes and removes files of a vLLM tree, one after the other. If one of these changes fails, all are undone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.output.disk import look
from pav2gen.output.transaction import Transaction

#: The prefix of the names of temporary files. A command that is killed may leave such files in a vLLM tree.
ASIDE = ".pav2gen-"

REMEDY = "some files could not be restored; restore them from version control"


@dataclass(frozen=True)
class Change:
    """A file to write, to replace or to remove.

    content: the new bytes of the file, or None to remove it.
    expected: the SHA-256 of the file's content when the command read it. If the content has another SHA-256 now, the
    change fails. An empty string means that no file may exist yet. None means that the old content is not checked.
    """

    path: Path
    content: bytes | None
    expected: str | None = None


@contextmanager
def transaction(changes: Iterable[Change], shown: str) -> Iterator[None]:
    """Make the changes, then run the ``with`` block.

    If a change fails or the block raises an exception, the changes are undone, the last one first. A file that is
    replaced keeps its permissions and its owner.

    shown: the name that messages give to the vLLM tree.

    Raises UserError, after undoing all changes, if a file cannot be written, or if someone changed it after the command
    had read it.
    """
    changes = list(dict.fromkeys(changes))  # two trees may share a file
    _check_writable(changes, shown)
    with Transaction(lambda file: file or shown, REMEDY) as steps:
        for change in changes:
            _make(steps, change)
        yield


def _make(steps: Transaction, change: Change) -> None:
    """Make one change of a file, as steps of the transaction ``steps``."""
    file = os.fspath(change.path)
    aside = os.path.join(os.path.dirname(file), f"{ASIDE}{secrets.token_hex(8)}")
    if change.content is None:
        steps.remove(aside, file, change.expected)
        return
    steps.make_folder(os.path.dirname(file))
    steps.write_aside(aside, change.content, look(file))
    steps.place(aside, file, change.content, change.expected)


def _check_writable(changes: Iterable[Change], shown: str) -> None:
    """Raise UserError if the command has no permission to write in the folder of a changed file.

    This is checked before the first change is made.
    """
    for folder in sorted({change.path.parent for change in changes}):
        there = next(above for above in (folder, *folder.parents) if above.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"cannot be written ({there}: no permission); nothing was changed", shown)
