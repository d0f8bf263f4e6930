"""Changes files in steps, such as replacing a file: either all steps of a transaction are done, or all are undone.

``build``, ``install`` and ``uninstall`` write their files in transactions. A file is read again right before it is
replaced or removed. If someone edited the file after the command first read it, the transaction fails, and the edit is
kept. If someone edits a file after it was replaced, the edit is kept too, and the replacement is not undone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from types import TracebackType

from pav2gen.errors import UserError
from pav2gen.files import sha256
from pav2gen.output.disk import OnDisk, look


class _Edited(Exception):
    """Someone changed the file at the path ``file`` after the command had read or written it."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


class Transaction:
    """A context manager that undoes the steps of its ``with`` block, the last one first, if the block raises an
    exception.

    The transaction then raises UserError if the exception is an OSError, if someone else changed a file, or if a step
    cannot be undone. The error message says whether all changes were undone. Other exceptions are passed on.
    """

    def __init__(self, shown: Callable[[str], str], remedy: str, on_undone: Callable[[], None] = lambda: None) -> None:
        """Prepare a transaction that has no steps yet.

        shown: a function that takes a path and returns the name that messages give to the path. For an empty path, the
        function returns the name of the folder that the command changes.
        remedy: the last words of the error message if a step cannot be undone. These words tell the user what to do.
        on_undone: a function that is called after all steps of a failed transaction were undone. If a step cannot be
        undone, the function is not called.
        """
        self._shown = shown
        self._remedy = remedy
        self._on_undone = on_undone
        #: How to undo each step. It is recorded before the step is done; undoing a step that was not done is harmless.
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Transaction:
        """Return the transaction."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """If the block raised an exception, undo all steps. Raises UserError in the cases that the class describes."""
        if error is None:
            return
        state = "all changes were undone" if self._roll_back() else self._remedy
        if isinstance(error, _Edited):
            raise UserError(
                f"was changed while the command ran; {state}. Run the command again", self._shown(error.file)
            )
        if isinstance(error, OSError):
            place = self._shown(os.fspath(error.filename or ""))
            raise UserError(f"cannot be written ({error.strerror}); {state}", place) from error
        if state == self._remedy:
            raise UserError(f"failed; {state}", self._shown("")) from error

    def make_folder(self, folder: str) -> None:
        """Make a folder and its missing parents. Undoing the step removes the new folders if they are empty."""
        if not os.path.isdir(folder):
            self.make_folder(os.path.dirname(folder))
            self._undo.append(partial(_remove_folder, folder))
            os.mkdir(folder)

    def write_aside(self, aside: str, content: bytes, like: OnDisk | None) -> None:
        """Write a new file at the temporary path ``aside``. Undoing the step removes the file.

        like: a file whose permissions and owner the new file gets, or None for the default ones.
        """
        self._undo.append(partial(_discard, aside))
        write_new(aside, content, like)

    def place(self, aside: str, file: str, content: bytes, expected: str | None) -> None:
        """Rename the file ``aside`` to ``file``. An old file with this name is replaced.

        content: the content of ``aside``.
        expected: the SHA-256 of the old file, empty if there must be no old file, or None to accept any.
        """
        old = _checked(file, expected)
        self._undo.append(partial(_put_back, file, aside, old, content))
        os.replace(aside, file)

    def place_folder(self, aside: str, folder: str) -> None:
        """Rename the folder ``aside`` to ``folder``, which must not exist. Undoing the step reverses the renaming."""
        self._undo.append(partial(_move_back, folder, aside))
        os.replace(aside, folder)

    def remove(self, aside: str, file: str, expected: str | None) -> None:
        """Remove ``file``.

        aside: a temporary path, to which undoing the step writes the old content first.
        expected: the SHA-256 that ``file`` must have, or None to accept any.
        """
        old = _checked(file, expected)
        if old is not None:
            self._undo.append(partial(_put_back, file, aside, old, None))
            os.unlink(file)

    def _roll_back(self) -> bool:
        """Undo the steps, the last one first. Returns whether all steps were undone.

        If a step cannot be undone, the other steps are undone nevertheless.
        """
        whole = True
        while self._undo:
            try:
                self._undo.pop()()
            except (OSError, _Edited):
                whole = False
        if whole:
            try:
                self._on_undone()
            except OSError:
                return False
        return whole


def write_new(file: str, content: bytes, like: OnDisk | None) -> None:
    """Write a new file at the path ``file``. Raises OSError if the file exists.

    like: a file whose permissions and owner the new file gets, or None for the default ones.
    """
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(handle, content)
        if like:
            if like.owner != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(handle, *like.owner)
            os.fchmod(handle, like.mode)
    finally:
        os.close(handle)


def write_all(handle: int, content: bytes) -> None:
    """Write all of ``content`` to the file descriptor ``handle``."""
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]  # it may write only a part


def _checked(file: str, expected: str | None) -> OnDisk | None:
    """Return what is at the path ``file`` now, or None if nothing is there.

    expected: the SHA-256 that the file must have, empty if there must be no file, or None to accept any content.

    Raises _Edited if the file does not meet ``expected``, or is not a regular file.
    """
    there = look(file)
    if there and not there.is_file:
        raise _Edited(file)
    if expected is not None and (there.digest if there else "") != expected:
        raise _Edited(file)
    return there


def _put_back(file: str, aside: str, old: OnDisk | None, new: bytes | None) -> None:
    """Restore the content, permissions and owner of ``file`` from ``old``. If ``old`` is None, remove ``file``.

    aside: a temporary path for the old content.
    new: the content that this transaction wrote to ``file``, or None if the transaction removed ``file``.

    Raises _Edited if someone changed ``file`` after this transaction had changed it.
    """
    there = look(file)
    if there == old:
        return
    if there and (new is None or there.digest != sha256(new)):
        raise _Edited(file)
    if old is None:
        os.unlink(file)
        return
    for place in (aside, file):
        os.makedirs(os.path.dirname(place), exist_ok=True)
    _discard(aside)
    write_new(aside, old.content, old)
    os.replace(aside, file)


def _move_back(folder: str, aside: str) -> None:
    if os.path.lexists(folder) and not os.path.lexists(aside):
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        os.replace(folder, aside)


def _discard(file: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file)


def _remove_folder(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
