"""Finds vLLM's package folders in a source checkout, an installation, or a prefix. Each folder is found only once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.install.payload.softcap_structure import BACKEND
from pav2gen.install.payload.structure import DECODE, LAYER, OPS

#: Where the generated package goes, below vLLM's package folder.
PAV2 = "attention/ops/pav2"

#: The files of a tree that an install edits.
EDITED = (OPS, DECODE, LAYER, BACKEND)

TWINS = {"lib": "lib64", "lib64": "lib"}


@dataclass(frozen=True)
class VllmTree:
    """The folder of vLLM's package, with symbolic links resolved, and the name that messages give it."""

    folder: Path
    shown: str

    @property
    def pav2(self) -> Path:
        """The folder of the generated package in this tree."""
        return self.folder / PAV2

    def source(self, path: str) -> Path:
        """Return the path of one of vLLM's source files, with symbolic links resolved."""
        return (self.folder / path).resolve()

    def where(self, path: str) -> str:
        """Return the name that messages give to a file of the tree."""
        return f"{self.shown}/{path}"


def find_trees(path: Path) -> list[VllmTree]:
    """Return the vLLM trees at ``path``: the folder itself, its ``vllm``, and those below ``lib`` and ``lib64`` in it.

    Raises UserError if there is no vLLM tree, or if the path cannot be read. Also raises UserError if a symbolic link
    leads from a file to be edited to a place outside of these trees.
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
    """Raise UserError if a symbolic link leads from a file or folder to be written to a place outside of the trees."""
    for tree in trees:
        for path in (PAV2.rpartition("/")[0], *EDITED):
            place = tree.source(path)
            if not any(place.is_relative_to(other.folder) for other in trees):
                raise UserError(
                    f"is a link to {place}, outside of this tree; name the tree of that file instead", tree.where(path)
                )


def _candidates(path: Path) -> Iterator[Path]:
    """Yield the folders at ``path`` that contain vLLM's package."""
    installed = path.glob("lib*/python*/*-packages/vllm")
    for folder in (path, path / "vllm", *sorted(installed)):
        if is_vllm(folder):
            yield folder


def _with_twins(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield each of ``folders``, and then its twin if there is one.

    The twin of a folder below ``lib`` is the folder with this path below ``lib64``, and the reverse.
    """
    for folder in folders:
        yield folder
        parts = folder.absolute().parts
        for index, part in enumerate(parts):
            if part in TWINS:
                twin = Path(*parts[:index], TWINS[part], *parts[index + 1 :])
                if is_vllm(twin):
                    yield twin


def is_vllm(folder: Path) -> bool:
    """Whether a folder is vLLM's package: it contains a file to edit, or the models folder of another vLLM version."""
    return any((folder / path).is_file() for path in (OPS, DECODE)) or (folder / "model_executor/models").is_dir()
