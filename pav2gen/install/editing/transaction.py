"""Writes and removes several files of a vLLM tree. If one change fails, all changes are undone."""

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

#: The prefix of the names of temporary files. A killed command may leave such files in a vLLM tree.
ASIDE = ".pav2gen-"

REMEDY = "some files could not be restored; restore them from version control"


@dataclass(frozen=True)
class Change:
    """A file to write, to replace or to remove.

    content: the new bytes of the file, or None to remove the file.
    expected: the SHA-256 that the file must have before the change. With another SHA-256, the change fails. An empty
    string means that there must be no file yet. None means that the old content is not checked.
    """

    path: Path
    content: bytes | None
    expected: str | None = None


@contextmanager
def transaction(changes: Iterable[Change], shown: str) -> Iterator[None]:
    """Make the changes, then run the ``with`` block.

    If a change fails or the block raises an exception, all changes are undone.

    A file that is replaced keeps its permissions and its owner.

    shown: the name that messages give to the vLLM tree.

    Raises UserError if a file cannot be written, or does not have the content that ``Change.expected`` describes.
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
    """Raise UserError if this process has no permission to write in the folder of a changed file."""
    for folder in sorted({change.path.parent for change in changes}):
        there = next(above for above in (folder, *folder.parents) if above.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"cannot be written ({there}: no permission); nothing was changed", shown)
