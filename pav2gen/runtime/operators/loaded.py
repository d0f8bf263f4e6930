"""Loads the kernels of one generated package: Python modules for PyTorch kernels, and shared libraries for CUDA
kernels.
"""

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
from ..choice.dispatch_row import Row
from ..choice.select import logger
from ..library import Library, LibraryError, build, kernels_of


class Kernels:
    """Loads a generated package's PyTorch kernels when a call first uses them, and its CUDA kernels when ``load`` is
    called.

    package: the import name of the generated package.
    rows: the rows of the dispatch tables of all operators.
    """

    def __init__(self, package: str, rows: Iterable[Row]) -> None:
        self.package = package
        self.rows = tuple(rows)
        self.root = Path(__file__).resolve().parents[2]
        self.libraries: dict[bool, Library] = {}  # True: the library for a GPU; False: the library for the CPU
        self._modules: dict[str, ModuleType] = {}
        self._told: set[str] = set()  # reasons why no library could be loaded, each logged once

    def module(self, row: Row) -> ModuleType:
        """Return the Python module with the PyTorch kernel of a dispatch table row. The first call for a row imports
        the module.
        """
        if row.torch not in self._modules:
            self._modules[row.torch] = importlib.import_module(f"{self.package}.{row.torch}")
        return self._modules[row.torch]

    def library(self, on_gpu: bool) -> Library:
        """Return the loaded library of CUDA kernels for the GPU if ``on_gpu`` is true, else the loaded library for the
        CPU.

        Raises LibraryError if no library for the device is loaded. Only ``load`` compiles kernels; a call of an
        operator never compiles.
        """
        if on_gpu not in self.libraries:
            what = "load()" if on_gpu else 'load("host")'
            raise LibraryError(f"no library of CUDA kernels is loaded for this device; call {what} first")
        return self.libraries[on_gpu]

    def backend(self, asked: str, rows: Iterable[Row], on_gpu: bool, operator: str = check.DECODE) -> str:
        """Return the backend to use for a call, "torch" or "cuda".

        The result is ``asked``, the caller's choice, unless ``asked`` is empty. If ``asked`` is empty, the result is
        the value of the environment variable PAV2_BACKEND. If PAV2_BACKEND is empty too, the method chooses "cuda" for
        a call on a GPU if a GPU library is loaded and a row in ``rows`` has a CUDA kernel. Otherwise, the method
        chooses "torch".

        rows: the dispatch table rows whose kernels can compute the call.
        operator: the operator's name for the error message.

        Raises ValueError for an unknown backend.
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
        """Load the library of CUDA kernels and return its path. If the cache has no such library, compile the library
        first.

        toolchain: "corex", "nvcc" or "host". A "host" library runs on the CPU.
        library: the path of a compiled library to load instead of compiling one.
        arch: the GPU architecture (see ``library.find_toolchain``).
        warp_size: the number of threads in a simulated warp of a "host" library, 32 or 64.
        checked: whether to compile a "host" library whose kernels check their memory accesses. Such kernels may access
        only memory that is registered with a ``runtime.simt`` session.

        Raises LibraryError if the library cannot be built or loaded, was built for a different device, or was compiled
        from other sources.

        If toolchain and library are both None, the method chooses a library itself and raises no LibraryError. The
        first choice is a GPU library that is already loaded. The second choice is the library at the path in the
        environment variable PAV2_LIBRARY. The third choice is the first library in the package's folder prebuilt. The
        last choice is to compile the kernels for this machine's GPU, unless an earlier compilation failed. If the last
        choice remains but the machine has no GPU or the package has no CUDA kernels, the method returns None. If the
        chosen library cannot be compiled or loaded, the method logs the reason once and returns None. After a result of
        None, the operators use PyTorch kernels.
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
                logger.warning("the PyTorch kernels are used, because the CUDA kernels could not be loaded: %s", error)
            return None
        self.libraries[loaded.on_gpu] = loaded
        return str(loaded.path)


def check_device(library: Library, asked: str | None) -> None:
    """Raise LibraryError if a library was built by another toolchain than ``asked``, or cannot run on the current GPU.

    The function logs a warning if the library and torch were built with different major versions of CUDA.

    asked: the name of the wanted toolchain, "the GPU" for any GPU toolchain, or None for any toolchain.
    """
    record = library.record
    if asked not in (None, record.toolchain) and not (asked == "the GPU" and record.on_gpu):
        raise LibraryError(f"{library.path} was not built for {asked}: it is a library for {record}")
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
        logger.warning(
            "%s was compiled by nvcc of CUDA %s, but torch was built for CUDA %s", library.path, ours, theirs
        )


def compiled_library(root: Path) -> str | None:
    """Return the path of a compiled library, or None if no library is found.

    The path is the value of the environment variable PAV2_LIBRARY. If PAV2_LIBRARY is not set, the path is the first of
    prebuilt/*.so in the package folder ``root``.
    """
    prebuilt = sorted(str(path) for path in (root / "prebuilt").glob("*.so"))
    return os.environ.get("PAV2_LIBRARY") or next(iter(prebuilt), None)
