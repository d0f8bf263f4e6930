"""One build at a time in a tree. The lock lies outside of it: a build with nothing to write touches nothing there."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.files import sha256


def no_wait() -> None:
    """Say nothing while another build holds the tree."""


@contextmanager
def locked(out: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of the tree at ``out``; ``on_wait`` is called once if another build holds it.

    The kernel drops the lock of a process that dies. Raises UserError where the lock file cannot be made.
    """
    path = lock_path(out)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"the lock cannot be made ({error.strerror}); set TMPDIR to a folder of yours", path) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lock_path(out: Path) -> str:
    """The lock file of the tree at ``out``: one for each user, since one user may not open another's."""
    name = sha256(os.fsencode(os.path.realpath(out)))[:16]
    return os.path.join(tempfile.gettempdir(), f"pav2gen-{os.getuid()}-{name}.lock")
