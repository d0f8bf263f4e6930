"""The ``FileSet``, which holds all files of a build in memory before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pav2gen.files import checked_path, sha256


class FileSet(Mapping[str, bytes]):
    """A mapping of relative posix paths to file contents, sorted by path. Adding a path twice is an error."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._digests: dict[str, str] = {}

    def add(self, path: str, content: str | bytes) -> None:
        """Add a file with ``content`` at ``path``. Text is encoded as UTF-8.

        Raises ValueError if the path was added before, even with equal content, or if the path leads out of the
        package.
        """
        if path in self._files:
            raise ValueError(f"two texts for one path: {path}")
        self._files[checked_path(path)] = content.encode() if isinstance(content, str) else content

    def digest(self, path: str) -> str:
        """The sha256 of the file at ``path``, computed once."""
        digest = self._digests.get(path)
        if digest is None:
            digest = self._digests[path] = sha256(self._files[path])
        return digest

    def update(self, other: Mapping[str, bytes]) -> None:
        """Add every file of ``other``. Raises ValueError as ``add`` does."""
        for path, content in other.items():
            self.add(path, content)

    def __getitem__(self, path: str) -> bytes:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)
