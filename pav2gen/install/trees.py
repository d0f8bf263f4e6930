"""Finding vLLM: a source checkout, an installed package, or the lib and lib64 of a prefix; each real folder once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.install.payload.structure import DECODE, OPS

#: Where the generated package goes, below vLLM's package folder.
PAV2 = "attention/ops/pav2"

TWINS = {"lib": "lib64", "lib64": "lib"}


@dataclass(frozen=True)
class VllmTree:
    """vLLM's package folder, with no symbolic link on the way to it, and the name that messages give it."""

    folder: Path
    shown: str

    @property
    def pav2(self) -> Path:
        """Where the generated package goes."""
        return self.folder / PAV2

    def source(self, path: str) -> Path:
        """The file of a source of vLLM. Where that is a symbolic link, what it leads to."""
        return (self.folder / path).resolve()

    def where(self, path: str) -> str:
        """The name of a file below the folder in messages."""
        return f"{self.shown}/{path}"


def find(path: Path) -> list[VllmTree]:
    """The vLLM trees at ``path``: itself, its ``vllm``, those of the Pythons of a prefix, and their lib/lib64 twins.

    Raises UserError if there is none, or the path cannot be read.
    """
    try:
        if not path.is_dir():
            raise UserError("is no folder; name a vLLM checkout, or the folder that vLLM is installed in", str(path))
        found = {folder.resolve(): str(folder) for folder in reversed([*_with_twins(_candidates(path))])}
    except (OSError, RuntimeError) as error:
        raise UserError(f"cannot be read ({getattr(error, 'strerror', None) or error})", str(path)) from error
    if not found:
        raise UserError(f"is no vLLM tree: there is no vllm/{OPS} below it", str(path))
    return [VllmTree(folder, shown) for folder, shown in sorted(found.items())]


def _candidates(path: Path) -> Iterator[Path]:
    """The folders at ``path`` that hold vLLM's package."""
    installed = path.glob("lib*/python*/*-packages/vllm")
    for folder in (path, path / "vllm", *sorted(installed)):
        if is_vllm(folder):
            yield folder


def _with_twins(folders: Iterable[Path]) -> Iterator[Path]:
    """The folders, and where one lies below a lib or lib64, the same folder below the other."""
    for folder in folders:
        yield folder
        parts = folder.absolute().parts
        for index, part in enumerate(parts):
            if part in TWINS:
                twin = Path(*parts[:index], TWINS[part], *parts[index + 1 :])
                if is_vllm(twin):
                    yield twin


def is_vllm(folder: Path) -> bool:
    """Whether a folder is vLLM's package: one of the files to edit is there, or the models of a vLLM without them."""
    return any((folder / path).is_file() for path in (OPS, DECODE)) or (folder / "model_executor/models").is_dir()
