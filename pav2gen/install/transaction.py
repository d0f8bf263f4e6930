"""Writing to a tree: the changes are made in their order, each by a rename; an error takes all of them back."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pav2gen.errors import UserError

#: How the names of files begin that are being written. A kill may leave one behind.
ASIDE = ".pav2gen-"


@dataclass(frozen=True)
class Change:
    """A file and its new bytes; None removes it."""

    path: Path
    content: bytes | None


@dataclass(frozen=True)
class _Before:
    """What stood in a file's place: nothing, or bytes with their status."""

    content: bytes | None
    status: os.stat_result | None


class Transaction:
    """Makes changes on entering; takes them back, last first, when the block behind it ends in an exception.

    Files keep their mode and owner. Raises UserError, with everything as it was, where something cannot be written.
    """

    def __init__(self, changes: Iterable[Change], shown: str) -> None:
        """``shown`` names the tree in messages."""
        self._changes = list(changes)
        self._shown = shown
        self._undo: list[tuple[Path, _Before]] = []
        self._folders: list[Path] = []

    def __enter__(self) -> None:
        """Make the changes."""
        self._check_writable()
        try:
            for change in self._changes:
                self._make(change)
        except BaseException as error:
            whole = self._roll_back()
            if isinstance(error, OSError):
                raise UserError(_sentence(error, whole), self._shown) from error
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the changes back if the block failed."""
        if error is not None and not self._roll_back():
            raise UserError("could not be put back as it was; restore it from version control", self._shown) from error

    def _check_writable(self) -> None:
        """Raise UserError where a folder cannot be written, before anything is."""
        for folder in sorted({change.path.parent for change in self._changes}):
            there = next(above for above in (folder, *folder.parents) if above.exists())
            if not os.access(there, os.W_OK | os.X_OK):
                raise UserError(f"cannot be written ({there}: no permission); nothing was changed", self._shown)

    def _make(self, change: Change) -> None:
        before = read(change.path)
        if change.content is None:
            if before.status:
                self._undo.append((change.path, before))
                change.path.unlink()
            return
        self._make_folder(change.path.parent)
        self._undo.append((change.path, before))
        _write(change.path, change.content, before.status)

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir()
            self._folders.append(folder)

    def _roll_back(self) -> bool:
        """Restore what stood there. Returns whether all of it could be."""
        whole = True
        while self._undo:
            path, before = self._undo.pop()
            try:
                if before.content is None:
                    path.unlink(missing_ok=True)
                elif read(path).content != before.content:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    _write(path, before.content, before.status)
            except OSError:
                whole = False
        for folder in reversed(self._folders):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return whole


def read(path: Path) -> _Before:
    """What stands at ``path``."""
    try:
        return _Before(path.read_bytes(), path.stat())
    except FileNotFoundError:
        return _Before(None, None)


def _write(path: Path, content: bytes, like: os.stat_result | None) -> None:
    """Put ``content`` at ``path`` by a rename, with the mode and owner of ``like``, or those of any new file."""
    handle, aside = tempfile.mkstemp(prefix=ASIDE, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode) if like else 0o666 & ~_umask())
            if like and (like.st_uid, like.st_gid) != (os.getuid(), os.getgid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sentence(error: OSError, whole: bool) -> str:
    name = f" at {error.filename}" if error.filename else ""
    state = "everything is as it was" if whole else "not all could be put back; restore it from version control"
    return f"cannot be written ({error.strerror}{name}); {state}"
