"""Finds vLLM's package folders in a source checkout, an installation, or a prefix such as ``/usr/local``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.install.payload.softcap_structure import BACKEND
from pav2gen.install.payload.structure import DECODE, LAYER, OPS

#: The folder, below vLLM's package folder, into which an install copies the generated package.
PAV2 = "attention/ops/pav2"

#: The paths, below vLLM's package folder, of the source files that an install edits.
EDITED = (OPS, DECODE, LAYER, BACKEND)

TWINS = {"lib": "lib64", "lib64": "lib"}


@dataclass(frozen=True)
class VllmTree:
    """A folder that contains vLLM's Python package.

    folder: the path of the folder, with symbolic links resolved.
    shown: the name that messages give to the folder.
    """

    folder: Path
    shown: str

    @property
    def pav2(self) -> Path:
        """The folder into which an install copies the generated package in this tree."""
        return self.folder / PAV2

    def source(self, path: str) -> Path:
        """Return the absolute path of the file ``path`` of vLLM, with symbolic links resolved.

        path: the path of the file, relative to ``folder``.
        """
        return (self.folder / path).resolve()

    def where(self, path: str) -> str:
        """Return the name that messages give to the file ``path``, which is relative to ``folder``."""
        return f"{self.shown}/{path}"


def find_trees(path: Path) -> list[VllmTree]:
    """Return the vLLM trees at ``path``, without duplicates.

    If a tree below ``lib`` has a copy below ``lib64``, or the reverse, both are returned.

    path: vLLM's package folder, the folder that contains it, or a prefix such as ``/usr/local`` below which vLLM is
    installed.

    Raises UserError if there is no vLLM tree, or if ``path`` cannot be read. Also raises UserError if a file to edit is
    a symbolic link to a place outside of these trees.
    """
    try:
        if not path.is_dir():
            raise UserError("is not a folder; name a vLLM checkout, or the folder that vLLM is installed in", str(path))
        found = {folder.resolve(): str(folder) for folder in reversed([*_with_twins(_candidates(path))])}
        trees = [VllmTree(folder, shown) for folder, shown in sorted(found.items())]
        _check_links(trees)
    except (OSError, RuntimeError) as error:
        raise UserError(f"cannot be read ({getattr(error, 'strerror', None) or error})", str(path)) from error
    if not trees:
        raise UserError(f"is not a vLLM tree: there is no vllm/{OPS} below it", str(path))
    return trees


def _check_links(trees: Sequence[VllmTree]) -> None:
    """Raise UserError if a file or folder that an install changes is a link to a place outside of ``trees``."""
    for tree in trees:
        for path in (PAV2.rpartition("/")[0], *EDITED):
            place = tree.source(path)
            if not any(place.is_relative_to(other.folder) for other in trees):
                raise UserError(
                    f"is a link to {place}, outside of this tree; name the tree of that file instead", tree.where(path)
                )


def _candidates(path: Path) -> Iterator[Path]:
    """Yield vLLM's package folders among ``path``, ``path/vllm`` and ``path/lib*/python*/*-packages/vllm``."""
    installed = path.glob("lib*/python*/*-packages/vllm")
    for folder in (path, path / "vllm", *sorted(installed)):
        if is_vllm(folder):
            yield folder


def _with_twins(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield each of ``folders``, and its copy below ``lib64`` or ``lib`` if there is one."""
    for folder in folders:
        yield folder
        parts = folder.absolute().parts
        for index, part in enumerate(parts):
            if part in TWINS:
                twin = Path(*parts[:index], TWINS[part], *parts[index + 1 :])
                if is_vllm(twin):
                    yield twin


def is_vllm(folder: Path) -> bool:
    """Whether ``folder`` looks like vLLM's package folder."""
    return any((folder / path).is_file() for path in (OPS, DECODE)) or (folder / "model_executor/models").is_dir()
