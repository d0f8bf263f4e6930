"""Changes files of a vLLM tree, one after the other. If a step fails, all changes are undone."""

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

#: The prefix of a temporary file's name while it is written. A kill may leave such a file behind.
ASIDE = ".pav2gen-"

REMEDY = "some files could not be restored; restore them from version control"


@dataclass(frozen=True)
class Change:
    """The change of one file.

    content: the new bytes, or None to remove the file.
    expected: the SHA-256 of the old content, as the command read it. An empty text means that no file may exist yet.
    None means that the old content is not checked.
    """

    path: Path
    content: bytes | None
    expected: str | None = None


@contextmanager
def transaction(changes: Iterable[Change], shown: str) -> Iterator[None]:
    """Make the changes, then run the ``with`` block.

    If the block raises an exception, undo the changes, the last one first.

    Files keep their mode and owner.

    shown: the name of the vLLM tree in messages.

    Raises UserError and restores everything if a file cannot be written, or if it was changed since the command read
    it.
    """
    changes = list(dict.fromkeys(changes))  # two trees may share a file
    _check_writable(changes, shown)
    with Transaction(lambda file: file or shown, REMEDY) as steps:
        for change in changes:
            _make(steps, change)
        yield


def _make(steps: Transaction, change: Change) -> None:
    """Make one change, as a step of the transaction."""
    file = os.fspath(change.path)
    aside = os.path.join(os.path.dirname(file), f"{ASIDE}{secrets.token_hex(8)}")
    if change.content is None:
        steps.remove(aside, file, change.expected)
        return
    steps.make_folder(os.path.dirname(file))
    steps.write_aside(aside, change.content, look(file))
    steps.place(aside, file, change.content, change.expected)


def _check_writable(changes: Iterable[Change], shown: str) -> None:
    """Raise UserError if a folder cannot be written. The check runs before the first write."""
    for folder in sorted({change.path.parent for change in changes}):
        there = next(above for above in (folder, *folder.parents) if above.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"cannot be written ({there}: no permission); nothing was changed", shown)
