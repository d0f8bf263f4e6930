"""Loads the kernels of one generated package for its operators: PyTorch modules and CUDA libraries."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import torch

from .. import check
from ..building.toolchain import cuda_major
from ..library import Library, LibraryError, build, kernels_of
from ..select import Row, logger


class Kernels:
    """Loads the kernels of a package. package: its import name. rows: the dispatch rows of all its operators."""

    def __init__(self, package: str, rows: Iterable[Row]) -> None:
        self.package = package
        self.rows = tuple(rows)
        self.root = Path(__file__).resolve().parents[2]
        self.libraries: dict[bool, Library] = {}  # whether a library is for a GPU -> the library
        self._modules: dict[str, ModuleType] = {}
        self._told: set[str] = set()  # reasons why no library could be loaded, each logged once

    def module(self, row: Row) -> ModuleType:
        """The module of a row's PyTorch kernel. The first use imports it."""
        if row.torch not in self._modules:
            self._modules[row.torch] = importlib.import_module(f"{self.package}.{row.torch}")
        return self._modules[row.torch]

    def library(self, on_gpu: bool) -> Library:
        """The loaded library for a GPU or for the CPU. Raises LibraryError if none is loaded: a call never compiles."""
        if on_gpu not in self.libraries:
            what = "load()" if on_gpu else 'load("host")'
            raise LibraryError(f"no library of CUDA kernels is loaded for this device; call {what} first")
        return self.libraries[on_gpu]

    def backend(self, asked: str, rows: Iterable[Row], on_gpu: bool, operator: str = check.DECODE) -> str:
        """The backend of a call: ``asked`` if it is given, else the variable PAV2_BACKEND, else the default.

        rows: the dispatch rows for the call. The default on a GPU is cuda if a library is loaded and a row has a CUDA
        kernel. In all other cases the default is torch. Raises ValueError for an unknown name. The message begins with
        ``operator``.
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
        """Load the CUDA kernels, and return the path of their library. Compile it first if it is not in the cache.

        toolchain: "corex", "nvcc" or "host" (the CPU, at ``warp_size``). checked: load the host library that accesses
        only memory registered with a session of ``runtime.simt``. library: the path of a compiled library. A library
        for another kind of device, or compiled from other sources, is refused. Raises LibraryError if no library can be
        loaded.

        Without toolchain and library, the library is the one that PAV2_LIBRARY names, else prebuilt/*.so in the
        package, else one that is compiled for this machine's GPU. If there is no GPU, or the package has no CUDA
        kernel, nothing is compiled and None is returned. A second call returns the loaded library. If loading fails,
        None is returned, the reason is logged once, and the PyTorch kernels serve. A failed build is not repeated.
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
    """Check that a library was built for ``asked`` (a toolchain, "the GPU", or None for any) and runs on this GPU.

    Raises LibraryError if not. Logs a warning if the library's CUDA release differs from torch's.
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
    """The path in PAV2_LIBRARY, else the first prebuilt/*.so in the package, else None."""
    prebuilt = sorted(str(path) for path in (root / "prebuilt").glob("*.so"))
    return os.environ.get("PAV2_LIBRARY") or next(iter(prebuilt), None)
