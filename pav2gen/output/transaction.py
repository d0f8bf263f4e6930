"""Transactions on files: either all steps are done, or all are undone. ``build``, ``install`` and ``uninstall`` write
their files in transactions.

Before a step is done, the way to undo it is recorded. Undoing a step that was not done is harmless. A file is read
again right before it is replaced or removed. If someone saved an edit since the command first read the file, the
transaction fails, and the edit is kept. Undoing a step also keeps edits that someone saved in the meantime.
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
    """Someone changed a file after the command had read it."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


class Transaction:
    """A context manager. If the ``with`` block ends in an exception, its steps are undone, the last one first.

    If the exception is an OSError, or if someone changed a file after the command had read it, a UserError is raised.
    Its message says in which state the files are.
    """

    def __init__(self, shown: Callable[[str], str], remedy: str, on_undone: Callable[[], None] = lambda: None) -> None:
        """``shown`` returns the name of a path for messages. For an empty path, ``shown`` returns the name of the whole
        folder.

        ``remedy`` ends the error message if a step could not be undone. It tells the user what to do. ``on_undone`` is
        called after all steps are undone.
        """
        self._shown = shown
        self._remedy = remedy
        self._on_undone = on_undone
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Transaction:
        """Begin the transaction, without any steps."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo all steps if the block failed. Raises UserError as described for the class."""
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
        """Make a folder and its missing parents."""
        if not os.path.isdir(folder):
            self.make_folder(os.path.dirname(folder))
            self._undo.append(partial(_remove_folder, folder))
            os.mkdir(folder)

    def write_aside(self, aside: str, content: bytes, like: OnDisk | None) -> None:
        """Write a new file at ``aside``, with the mode and owner of ``like`` if given. Undoing the step removes the
        file.
        """
        self._undo.append(partial(_discard, aside))
        write_new(aside, content, like)

    def place(self, aside: str, file: str, content: bytes, expected: str | None) -> None:
        """Rename the file ``aside``, which has ``content``, to ``file``.

        ``expected`` is the sha256 of the file that is replaced, or empty if no file may be there. None skips this
        check.
        """
        old = _checked(file, expected)
        self._undo.append(partial(_put_back, file, aside, old, content))
        os.replace(aside, file)

    def place_folder(self, aside: str, folder: str) -> None:
        """Rename the folder ``aside`` to ``folder``, which must not exist yet."""
        self._undo.append(partial(_move_back, folder, aside))
        os.replace(aside, folder)

    def remove(self, aside: str, file: str, expected: str | None) -> None:
        """Remove ``file``. ``expected`` is the sha256 of its content. None skips this check.

        To undo the step, the content is written to ``aside`` first, and then renamed to ``file``.
        """
        old = _checked(file, expected)
        if old is not None:
            self._undo.append(partial(_put_back, file, aside, old, None))
            os.unlink(file)

    def _roll_back(self) -> bool:
        """Undo every step, the last one first, even if a step cannot be undone. Returns whether all steps were
        undone.
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
    """Write a new file at ``file``, with the mode and owner of ``like`` if given. Raises OSError if the file exists."""
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
    """Write all of ``content`` to an open file. A single call of ``os.write`` may write only a part."""
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]


def _checked(file: str, expected: str | None) -> OnDisk | None:
    """Read ``file`` again, before it is replaced or removed. Raises _Edited unless its sha256 is ``expected``."""
    there = look(file)
    if there and not there.is_file:
        raise _Edited(file)
    if expected is not None and (there.digest if there else "") != expected:
        raise _Edited(file)
    return there


def _put_back(file: str, aside: str, old: OnDisk | None, new: bytes | None) -> None:
    """Restore the old content of ``file``. Raises _Edited if someone changed the file since this transaction wrote
    ``new``.
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
