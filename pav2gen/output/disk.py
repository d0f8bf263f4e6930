"""Reads the files of a generated package from the disk. Symbolic links are not followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.files import sha256

#: The flags with which ``os.open`` opens a file to read: fail at a symbolic link, and do not wait for data in a pipe.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class OnDisk:
    """A file, folder or symbolic link on the disk.

    kind: "a file" for a regular file; else "a folder", "a symbolic link" or "a special file". Only a regular file has
    the other attributes.
    content: the bytes of the file.
    mode: the permission bits of the file.
    owner: the numeric ids of the file's user and group.
    """

    content: bytes = b""
    mode: int = 0
    kind: str = "a file"
    owner: tuple[int, int] = (-1, -1)

    @property
    def is_file(self) -> bool:
        """Whether a regular file is at the path."""
        return self.kind == "a file"

    @property
    def digest(self) -> str:
        """The SHA-256 of the content of a regular file, or empty for anything other than a regular file."""
        return sha256(self.content) if self.is_file else ""


class Disk:
    """Reads files and folders below one folder, without following symbolic links.

    root: the path of the folder, with symbolic links resolved.
    shown: the name that messages give to the folder.
    """

    def __init__(self, root: Path, shown: str) -> None:
        self.root = root
        self.shown = shown
        self._folders: dict[str, bool] = {}

    def at(self, path: str) -> OnDisk | None:
        """Return what is at ``path``, which is relative to the root, or None if nothing is there.

        Raises UserError if a folder in the path is a symbolic link or a file, or if the path cannot be read.
        """
        if not self.has_folder(path.rpartition("/")[0]):
            return None
        try:
            return look(f"{self.root}/{path}")
        except OSError as error:
            raise UserError(f"cannot be read ({error.strerror})", f"{self.shown}/{path}") from error

    def folders(self) -> list[str]:
        """Return the names of the folders directly in the root, sorted. Symbolic links are left out.

        The result is empty if the root does not exist.
        """
        if not self.has_folder(""):
            return []
        return sorted(entry.name for entry in self._entries("") if entry.is_dir(follow_symlinks=False))

    def walk(self) -> Iterator[str]:
        """Yield the paths of all files below the root, relative to the root. A symbolic link counts as a file.

        Raises UserError for a folder that cannot be read.
        """
        folders = [""] if self.has_folder("") else []
        while folders:
            folder = folders.pop()
            for entry in self._entries(folder):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                else:
                    yield path

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(f"{self.root}/{folder}") as entries:
                return list(entries)
        except OSError as error:
            raise UserError(f"cannot be read ({error.strerror})", f"{self.shown}/{folder}".rstrip("/")) from error

    def has_folder(self, folder: str) -> bool:
        """Whether ``folder``, a path relative to the root, exists.

        Raises UserError if a part of this path is a symbolic link or a file.
        """
        known = self._folders.get(folder)
        if known is None:
            known = self._folders[folder] = self._is_folder(folder)
        return known

    def _is_folder(self, folder: str) -> bool:
        if folder and not self.has_folder(folder.rpartition("/")[0]):
            return False
        try:
            mode = os.lstat(f"{self.root}/{folder}").st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(f"cannot be read ({error.strerror})", f"{self.shown}/{folder}".rstrip("/")) from error
        if stat.S_ISDIR(mode):
            return True
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a folder"
        raise UserError(f"is {kind}, but the package needs a folder of this name; remove it", f"{self.shown}/{folder}")


def look(file: str) -> OnDisk | None:
    """Return what is at the path ``file``, or None if nothing is there.

    A symbolic link at this path is not followed. Raises OSError if a regular file cannot be read.
    """
    try:
        handle = os.open(file, READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            return OnDisk(kind="a symbolic link")
        if error.errno == errno.ENXIO:
            return OnDisk(kind="a special file")
        raise
    try:
        return _read(handle)
    finally:
        os.close(handle)


def _read(handle: int) -> OnDisk:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        return OnDisk(kind="a folder" if stat.S_ISDIR(status.st_mode) else "a special file")
    content = os.read(handle, status.st_size + 1)
    while more := os.read(handle, 1 << 20) if len(content) != status.st_size else b"":
        content += more
    return OnDisk(content, stat.S_IMODE(status.st_mode), owner=(status.st_uid, status.st_gid))
