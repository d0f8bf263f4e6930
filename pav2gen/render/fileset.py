"""The class ``FileSet``: files in memory that have not been written to the disk yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pav2gen.files import checked_path, sha256


class FileSet(Mapping[str, bytes]):
    """A mapping from the path of each file to its content, sorted by path.

    The paths are relative to the generated package, with ``/`` between folders.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._digests: dict[str, str] = {}

    def add(self, path: str, content: str | bytes) -> None:
        """Add a file with ``content`` at ``path``. Text is encoded as UTF-8.

        Raises ValueError if this set already has a file at ``path``, even with equal content, or if ``path`` leads out
        of the generated package.
        """
        if path in self._files:
            raise ValueError(f"two texts for one path: {path}")
        self._files[checked_path(path)] = content.encode() if isinstance(content, str) else content

    def digest(self, path: str) -> str:
        """Return the sha256 of the file at ``path`` as hexadecimal digits."""
        digest = self._digests.get(path)
        if digest is None:
            digest = self._digests[path] = sha256(self._files[path])
        return digest

    def update(self, other: Mapping[str, bytes]) -> None:
        """Add every file of ``other``, which maps paths to contents. Raises ValueError in the same cases as ``add``."""
        for path, content in other.items():
            self.add(path, content)

    def __getitem__(self, path: str) -> bytes:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)
