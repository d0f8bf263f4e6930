"""The disk cache of compiled libraries: the cache folder, a lock for each library, and the records of failed builds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from .. import simt
from ..simt.cache import platform_cache, read_json, write_note

#: Matches compiler messages of temporary failures: memory or disk ran out, or the compiler was killed.
_PASSING = re.compile(r"No space left|Cannot allocate|memory exhausted|out of memory|[Kk]illed|terminated", re.ASCII)

#: The builds that failed in this process: path of the library -> the compiler's messages.
_failed: dict[Path, str] = {}


class FailedBeforeError(Exception):
    """An earlier build of the library failed, and nothing that the build depends on has changed.

    The exception's message contains the compiler's messages.
    """


def cache_folder() -> Path:
    """Return the folder of compiled libraries: the value of PAV2_CACHE, else ``pav2`` in the user's cache folder.

    Raises simt.CacheError if PAV2_CACHE is not set and the user has no home folder.
    """
    return platform_cache("PAV2_CACHE", "pav2")


@contextlib.contextmanager
def locked(library: Path) -> Iterator[None]:
    """A context manager that holds a lock for the path ``library``, so that only one process at a time builds the
    library.

    The lock is an empty file in the library's folder. The context manager deletes the lock file at the end. If the lock
    file's path is a symbolic link, the context manager raises OSError.
    """
    path = library.with_suffix(".lock")
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not _is_still(path, handle):
                continue  # its last holder removed it, and another may hold a new one
            try:
                yield
            finally:
                os.unlink(path)
            return
        finally:
            os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    """Return whether the file that was opened as ``handle`` still exists under the name ``path``."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False


class Failures:
    """The record that a library's build failed, in a file in the library's folder.

    The library's file name contains a hash of everything that the build depends on. Changed sources or flags therefore
    lead to another file name, for which no failure is recorded yet.
    """

    def __init__(self, library: Path) -> None:
        self.library = library
        self.path = library.with_suffix(".failed.json")
        self._asked = time.time()

    def raise_known(self) -> None:
        """Raise FailedBeforeError if an earlier build of the library failed, in this process or in another process."""
        said = _failed.get(self.library) or self._noted()
        if said:
            raise FailedBeforeError(said)

    def raise_new(self) -> None:
        """Raise FailedBeforeError if a build of the library failed in another process after this object was created.

        A process calls this method after it has waited for the library's lock. Another process may have built the
        library during the wait.
        """
        with contextlib.suppress(OSError):
            if self.path.stat().st_mtime >= self._asked:
                self.raise_known()

    def remember(self, error: simt.CompileError) -> None:
        """Record that the build failed with ``error``, unless the cause is temporary, such as a full disk."""
        if not _PASSING.search(error.output):
            _failed[self.library] = str(error)
            with contextlib.suppress(OSError):
                write_note(self.path, {"error": str(error)})

    def forget(self) -> None:
        """Delete the record of a failed build. The build calls this method as soon as the library exists."""
        _failed.pop(self.library, None)
        self.path.unlink(missing_ok=True)

    def _noted(self) -> str:
        said = read_json(self.path).get("error")
        return said if isinstance(said, str) else ""
