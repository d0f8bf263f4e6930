"""Locks a folder, so that only one command at a time writes in it.

Any number of commands that only read can lock a folder at the same time. If a command is killed, the operating system
unlocks its folders.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pav2gen.errors import UserError

#: PATIENCE: how many seconds a command waits for a folder that another command has locked. INTERVAL: how many seconds
#: pass between two attempts to lock the folder.
PATIENCE, INTERVAL = 300.0, 0.05

#: A function that is called once before a command waits for a locked folder. Its argument is the description of the
#: process that has locked the folder, from ``holder``.
OnWait = Callable[[str], None]


def no_wait(holder: str) -> None:
    """Do nothing. A command that passes this function as ``on_wait`` waits without a message."""


@contextmanager
def locked(folder: Path, on_wait: OnWait, create: bool = False) -> Iterator[None]:
    """Lock ``folder`` while the ``with`` block runs, so that only this command reads or writes in it.

    on_wait: called once if another command has locked the folder, before waiting for that command.
    create: whether to make the folder and its parents if they are missing. New folders that are empty after the block
    are removed. Without ``create``, a missing folder is neither made nor locked.

    Raises UserError if the folder cannot be made or locked, or if another command keeps the folder locked for longer
    than ``PATIENCE`` seconds.
    """
    path = os.path.realpath(folder)
    made = _make(path, os.fspath(folder)) if create else []
    with _held(path, os.fspath(folder), fcntl.LOCK_EX, on_wait, made if create else None):
        try:
            yield
        finally:  # before the lock is dropped, because another command may wait for this folder
            _remove_empty(made)


@contextmanager
def shared(folder: Path, on_wait: OnWait) -> Iterator[None]:
    """Lock ``folder`` while the ``with`` block runs, so that other commands can read in it, but not write.

    A missing folder is not locked.

    on_wait: called once if another command has locked the folder with ``locked``, before waiting for that command.

    Raises UserError if the folder cannot be locked, or if another command keeps it locked for longer than ``PATIENCE``
    seconds.
    """
    with _held(os.path.realpath(folder), os.fspath(folder), fcntl.LOCK_SH, on_wait, None):
        yield


@contextmanager
def _held(path: str, shown: str, kind: int, on_wait: OnWait, made: list[str] | None) -> Iterator[None]:
    """Lock the folder at ``path`` while the ``with`` block runs.

    shown: the name that messages give to the folder.
    kind: ``LOCK_EX`` to lock out all other commands, ``LOCK_SH`` to lock out only commands that write.
    on_wait: called once if another command has locked the folder.
    made: the folders that this command has made. A missing folder is made and added to ``made``. If ``made`` is None, a
    missing folder is neither made nor locked.
    """
    while True:
        handle = _open(path, shown)
        if handle is None:
            if made is None:
                yield
                return
            made += _make(path, shown)
            continue
        try:
            _lock(handle, shown, kind, on_wait)
            if not _names(path, handle):
                continue
            yield
            return
        finally:
            os.close(handle)


def _open(path: str, shown: str) -> int | None:
    """Open the folder at ``path``, and return its file descriptor, or None if the folder does not exist.

    shown: the name that messages give to the folder.

    Raises UserError if ``path`` is a file or cannot be opened.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        if not os.path.lexists(path):
            return None  # a parent is a file
        raise UserError("is not a folder; name another one", shown) from None
    except OSError as error:
        raise UserError(f"cannot be locked ({error.strerror})", shown) from error


def _lock(handle: int, shown: str, kind: int, on_wait: OnWait) -> None:
    """Lock the folder with the file descriptor ``handle``. If another command has locked it, wait for that command.

    Raises UserError if the folder cannot be locked, or if waiting takes longer than ``PATIENCE`` seconds.
    """
    deadline = None
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise UserError(f"cannot be locked ({error.strerror})", shown) from error
        if deadline is None:
            deadline = time.monotonic() + PATIENCE
            on_wait(holder(handle))
        if time.monotonic() > deadline:
            raise UserError(
                f"has been locked by {holder(handle)} for over {PATIENCE:.0f} s; end that process, or try again later",
                shown,
            )
        time.sleep(INTERVAL)


def _names(path: str, handle: int) -> bool:
    """Whether ``path`` is still the path of the open folder ``handle``."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def holder(handle: int) -> str:
    """Describe the process that has locked the open folder ``handle``: ``process 4711 (pav2gen build a.yaml)``.

    If the process cannot be found, return ``another process``.
    """
    status = os.fstat(handle)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            locks = [line.split() for line in file]
    except OSError:
        locks = []
    # 1: FLOCK ADVISORY WRITE 4711 08:01:12345 0 EOF; a process that waits has "->" in its second field
    pids = [words[4] for words in locks if len(words) > 5 and words[1] == "FLOCK" and words[5] == place]
    return f"process {pids[0]}{_command(pids[0])}" if pids else "another process"


def _command(pid: str) -> str:
    """Return the command line of the process ``pid``, in brackets, or an empty string if the command line cannot be
    read.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        return ""
    text = words.decode(errors="replace")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f" ({text[:80]})" if text else ""


def _make(path: str, shown: str) -> list[str]:
    """Make the folder ``path`` and its missing parents. Returns the paths of the new folders, the topmost first.

    shown: the name that messages give to the folder.

    Raises UserError, after removing the new folders, if one of them cannot be made.
    """
    made: list[str] = []
    try:
        for folder in (*reversed(Path(path).parents), Path(path)):
            if not folder.is_dir():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder)
                    made.append(os.fspath(folder))
    except OSError as error:
        _remove_empty(made)
        raise UserError(f"cannot be written ({error.strerror}); all changes were undone", shown) from error
    return made


def _remove_empty(folders: list[str]) -> None:
    """Remove the folders in ``folders`` that are empty, from the last to the first."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            if not os.listdir(folder):
                os.rmdir(folder)
