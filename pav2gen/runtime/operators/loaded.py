"""The kernels of one generated package, for every operator: their PyTorch modules and their CUDA libraries."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import torch

from .. import check
from ..library import Library, LibraryError, build, kernels_of
from ..select import Row, logger
from ..toolchain import cuda_major


class Kernels:
    """Loads and runs the kernels of a package. ``package`` is its import name; ``rows`` are those of all operators."""

    def __init__(self, package: str, rows: Iterable[Row]) -> None:
        self.package = package
        self.rows = tuple(rows)
        self.root = Path(__file__).resolve().parents[2]
        self.libraries: dict[bool, Library] = {}  # by whether they are for a GPU
        self._modules: dict[str, ModuleType] = {}
        self._told: set[str] = set()  # why no library could be loaded

    def module(self, row: Row) -> ModuleType:
        """The module of a PyTorch kernel, imported when it is first needed."""
        if row.torch not in self._modules:
            self._modules[row.torch] = importlib.import_module(f"{self.package}.{row.torch}")
        return self._modules[row.torch]

    def library(self, on_gpu: bool) -> Library:
        """The loaded library of a kind of device. Raises LibraryError if there is none: no compiler runs in a call."""
        if on_gpu not in self.libraries:
            what = "load()" if on_gpu else 'load("host")'
            raise LibraryError(f"no library of CUDA kernels is loaded for this device; call {what} first")
        return self.libraries[on_gpu]

    def backend(self, asked: str, rows: Iterable[Row], on_gpu: bool, operator: str = check.DECODE) -> str:
        """The backend of a call that ``rows`` serve: the one asked for, else PAV2_BACKEND, else the device's own.

        That is cuda on a GPU with its library loaded, else torch. Raises ValueError, in the name of ``operator``, for a
        name that is no backend.
        """
        name = asked or os.environ.get("PAV2_BACKEND", "")
        if not name:
            return "cuda" if on_gpu and True in self.libraries and any(row.cuda for row in rows) else "torch"
        if name not in ("torch", "cuda"):
            check.fail(f"backend {name!r} is neither 'torch' nor 'cuda'", operator)
        return name

    def load(
        self,
        toolchain: str | None = None,
        *,
        library: str | os.PathLike[str] | None = None,
        arch: str | None = None,
        warp_size: int = 64,
        checked: bool = False,
    ) -> str | None:
        """Compile (or find in the cache) and load the CUDA kernels; returns the path of the library.

        toolchain: "corex", "nvcc" or "host" (the CPU, at ``warp_size``); by default the one of this machine's device,
        and None is returned where there is no device, or no CUDA kernel in the package. checked: the host library
        that takes only memory registered with a session of ``runtime.simt``.
        library: one that is already compiled; PAV2_LIBRARY names one too, and prebuilt/*.so in the package is one. A
        default that is loaded already is not loaded again. What a library is, it says itself: one for the other kind of
        device, or compiled from other sources, is refused. Raises LibraryError if a library can't be had; by default
        the reason is logged once, the PyTorch kernels serve, and a build that failed is not tried again.
        """
        by_default = toolchain is None and library is None
        if by_default and True in self.libraries:
            return str(self.libraries[True].path)
        given = library or (compiled_library(self.root) if by_default else None)
        kernels = kernels_of(self.rows, self.root)
        if by_default and not given and not (kernels and torch.cuda.is_available()):
            return None
        try:
            path = given or build(kernels, toolchain, arch, warp_size=warp_size, checked=checked, again=not by_default)
            loaded = Library(Path(path), kernels)
            check_device(loaded, "the GPU" if by_default else toolchain)
        except LibraryError as error:
            if not by_default:
                raise
            if str(error) not in self._told:
                self._told.add(str(error))
                logger.warning("the PyTorch kernels serve, because the CUDA kernels could not be loaded: %s", error)
            return None
        self.libraries[loaded.on_gpu] = loaded
        return str(loaded.path)


def check_device(library: Library, asked: str | None) -> None:
    """See that a library is for what was ``asked``: a toolchain, "the GPU", or None for any; and for this GPU.

    Raises LibraryError if not. Warns if the library's CUDA release differs from torch's.
    """
    record = library.record
    if asked not in (None, record.toolchain) and not (asked == "the GPU" and record.on_gpu):
        raise LibraryError(f"{library.path} is not for {asked}: it is a library of {record}")
    if not record.on_gpu or not torch.cuda.is_available():
        return
    capability = torch.cuda.get_device_capability()
    needed = re.fullmatch(r"sm_(\d+)(\d)[a-z]?", record.arch)
    if needed and capability < (int(needed[1]), int(needed[2])):
        raise LibraryError(
            "{} was compiled for {}; this device is sm_{}{}".format(library.path, record.arch, *capability)
        )
    ours, theirs = cuda_major(record.compiler), (torch.version.cuda or "").partition(".")[0]
    if ours and theirs and ours != theirs:
        logger.warning("%s was compiled by nvcc of CUDA %s, and torch is of CUDA %s", library.path, ours, theirs)


def compiled_library(root: Path) -> str | None:
    """The library that came with a package or its environment: PAV2_LIBRARY, or the first of prebuilt/*.so."""
    prebuilt = sorted(str(path) for path in (root / "prebuilt").glob("*.so"))
    return os.environ.get("PAV2_LIBRARY") or next(iter(prebuilt), None)
