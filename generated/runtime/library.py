"""Compiles the CUDA kernels of a package into a shared library, loads the library with ctypes, and launches its
kernels.

As a script, this module compiles the package that contains the script. The script does not need torch:

    python runtime/library.py --toolchain corex
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # run as a file: make relative imports work without running the package's __init__
    sys.path.pop(0)  # remove this folder: some of its modules have the names of standard modules
    _package = types.ModuleType("pav2_package")
    _package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["pav2_package"] = _package
    sys.exit(importlib.import_module("pav2_package.runtime.library").main())

from . import simt
from .building.cache import FailedBeforeError
from .building.compiling import HostBuild, Kernels, build_gpu, build_host, on_stderr, quiet
from .building.library_record import Record, RecordError, mismatch, read_record, source_digests
from .building.toolchain import TOOLCHAINS, CompilerMissingError, Toolchain, corex, nvcc
from .choice.dispatch_row import MIB, Row
from .simt.cache import digest, read_note

if TYPE_CHECKING:
    from .call import Call

ROOT = Path(__file__).resolve().parents[1]


class LibraryError(RuntimeError):
    """A library of kernels can't be built, loaded or used. The message says how to solve the problem."""


class Library:
    """A loaded library of kernels, with methods that launch the kernels.

    kernels: the package's CUDA sources. The constructor refuses a library that was compiled from sources different from
    ``kernels``. If ``kernels`` is None, the constructor accepts a library that was compiled from any sources.

    Before any code of the library runs, the constructor reads the build record in the library file. The constructor
    also compares the file with the checksum that was stored when the library was compiled. The constructor raises
    LibraryError if it refuses the library or can't load the library.
    """

    def __init__(self, path: Path, kernels: Kernels | None = None) -> None:
        self.path = Path(os.path.abspath(path))
        self.record = identify(self.path, kernels)
        self.kernels = frozenset(self.record.kernels)
        self.on_gpu = self.record.on_gpu
        self._functions: dict[str, Any] = {}  # the entry functions of kernels, by name
        try:
            self.handle = ctypes.CDLL(str(self.path))
            self.program = None if self.on_gpu else simt.attach(self.handle)
        except (OSError, ValueError) as error:
            raise LibraryError(f"{self.path} can't be loaded: {error}") from None

    def launch(self, row: Row, call: Call, **options: Any) -> None:
        """Run the kernel of a dispatch table row on a checked call. ``options`` are further arguments of
        ``launch.launch``.

        Raises LibraryError if the library does not have the kernel, and RuntimeError if the launch fails.
        """
        from .launch import launch

        launch(self.function(row), call, row.partition_size, row.workspace_mib * MIB, self.explain, **options)

    def function(self, row: Row) -> Any:
        """Return the C function that launches the kernel of a dispatch table row.

        Raises LibraryError if the library does not have this function.
        """
        function = self._functions.get(row.symbol)
        if function is None:
            if row.symbol not in self.kernels:
                what = "it was built from another package; load() again"
                raise LibraryError(f"{self.path.name} lacks {row.symbol}: {what}")
            function = self._functions[row.symbol] = self.handle[row.symbol]
        return function

    def explain(self, code: int) -> str:
        """Return a sentence that explains ``code``, the error code that a launch returned."""
        if self.program is not None:
            return self.program.message or f"error {code} on the CPU"
        text = getattr(self.handle, "cudaGetErrorString", None)
        if text is None:
            return f"CUDA error {code}"
        text.restype = ctypes.c_char_p
        return f"CUDA error {code}: {text(code).decode()}"


def identify(path: Path, kernels: Kernels | None = None) -> Record:
    """Read the build record in the library file at ``path``, without running any code of the library.

    Raises LibraryError if the file is damaged, is not a library of pav2 kernels, or was not compiled from ``kernels``.
    """
    try:
        record = read_record(path)
        reason = "" if kernels is None else mismatch(record, source_digests(kernels))
    except RecordError as error:
        raise LibraryError(f"{path} is not a library of pav2 kernels: {error}") from None
    except OSError as error:
        raise LibraryError(f"{error.filename or path} can't be read: {error.strerror}") from None
    if read_note(path).get("sha256", digest(path)) != digest(path):
        raise LibraryError(f"{path} is damaged: its bytes have changed since it was compiled; remove it, compile again")
    if reason:
        raise LibraryError(f"{path} does not fit this package: {reason}")
    return record


def kernels_of(rows: Iterable[Row], root: Path = ROOT) -> Kernels:
    """Return the CUDA source file of each kernel in ``rows``, by the name of the kernel's entry function.

    The result omits kernels without a CUDA source.

    rows: rows of the dispatch table. root: the folder of the package.
    """
    return {row.symbol: root / row.cuda for row in rows if row.cuda}


def find_toolchain(name: str | None, arch: str | None) -> Toolchain:
    """Return the GPU toolchain called ``name``. If ``name`` is None, return CoreX if CoreX is installed, else nvcc.

    arch: the GPU architecture. The default is ivcore10 (the BI-V100 GPU) for CoreX, and the current device's
    architecture for nvcc.

    Raises CompilerMissingError if the toolchain's compiler is missing. Raises LibraryError if ``name`` is unknown.
    Raises LibraryError if nvcc's default architecture is needed and the machine has no CUDA device.
    """
    if name in (None, "corex"):
        try:
            return corex(arch or "ivcore10")
        except CompilerMissingError:
            if name == "corex":
                raise
    if name not in (None, "nvcc"):
        raise LibraryError(f"no toolchain {name!r}; choose corex or nvcc, or host for the CPU")
    return nvcc(arch or device_arch())


def device_arch() -> str:
    """Return the architecture of the current CUDA device, such as sm_75.

    Raises LibraryError if the machine has no CUDA device, or if torch is not installed.
    """
    try:
        import torch

        if torch.cuda.is_available():
            return "sm_{}{}".format(*torch.cuda.get_device_capability())
    except ImportError:
        pass
    raise LibraryError("no CUDA device, so the architecture is unknown; name it: --arch sm_75")


def build(
    kernels: Kernels,
    toolchain: str | None = None,
    arch: str | None = None,
    jobs: int | None = None,
    warp_size: int = 64,
    checked: bool = False,
    verbose: bool = False,
    again: bool = True,
    quick: bool = False,
) -> Path:
    """Compile ``kernels`` into a library, unless the disk cache already has the library. Return the library's path.

    Raises LibraryError if an argument is wrong or the build fails. If a compiler fails, the error message contains the
    compiler's messages.

    toolchain: ``corex``, ``nvcc``, or ``host`` for a library that runs on the CPU. If ``toolchain`` is None, the
    function uses CoreX if CoreX is installed, else nvcc.
    arch: the GPU architecture (see ``find_toolchain``).
    jobs: the number of compiler processes that run in parallel.
    warp_size: for the host toolchain, the number of threads in a simulated warp, 32 or 64.
    checked: for the host toolchain, whether the compiled kernels check each of their memory accesses.
    quick: for the host toolchain, whether to compile with fewer optimisations, which takes about half the time but
    makes the kernels slower.
    verbose: whether to report progress on stderr.
    again: whether to repeat a build that failed earlier with the same sources, flags and compiler.
    """
    jobs, progress = jobs or os.cpu_count() or 1, on_stderr if verbose else quiet
    kernels = dict(sorted(kernels.items()))  # all callers get the same library
    if not kernels:
        raise LibraryError("the package has no CUDA kernels: add cuda to the spec's backends and build it again")
    if toolchain == "host" and arch:
        raise LibraryError(f"--arch {arch} names a GPU; the host toolchain builds for this machine: leave --arch out")
    if toolchain != "host" and checked:
        raise LibraryError("a checked build runs on the CPU: --toolchain host --checked")
    if toolchain == "host" and warp_size not in (32, 64):
        raise LibraryError(f"warp_size is 32 or 64, not {warp_size}")
    try:
        if toolchain == "host":
            return build_host(kernels, HostBuild(warp_size, checked, quick), jobs, progress, again)
        return build_gpu(kernels, find_toolchain(toolchain, arch), jobs, progress, again)
    except FailedBeforeError as error:
        command = f"python {Path(__file__).resolve()}"
        raise LibraryError(f"{error}\nit failed before and is not tried again; to try again: {command}") from None
    except (CompilerMissingError, simt.ToolchainError, simt.CompileError) as error:
        raise LibraryError(str(error)) from None
    except OSError as error:
        raise LibraryError(f"{error.filename}: {error.strerror}") from None


def build_for_tests(kernels: Kernels, warp_size: int, checked: bool) -> Path:
    """Compile the CPU library that the package's tests use, and return its path.

    Raises LibraryError if the build fails.
    """
    return build(kernels, "host", warp_size=warp_size, checked=checked, quick=True)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Compile the CUDA kernels of the package in the folder ``root``, and print the path of the compiled library.

    Returns the exit status: 0, or 2 after an error message on stderr.

    arguments: the command line, without the program's name.
    """
    parser = argparse.ArgumentParser(description="Compile the CUDA kernels of this package into one library.")
    parser.add_argument("--toolchain", choices=TOOLCHAINS, help="default: corex if it is found, else nvcc")
    parser.add_argument("--arch", help="ivcore10 for BI-V100 (CoreX's default); sm_75 and the like for nvcc")
    parser.add_argument("--jobs", type=int, help="how many compilers run at once; default: one for each processor")
    parser.add_argument("--warp-size", type=int, choices=(32, 64), default=64, help="warp size of the host toolchain")
    parser.add_argument("--checked", action="store_true", help="the host toolchain's checked build")
    options = parser.parse_args(arguments)
    try:
        path = build(
            kernels_of(package_rows(root), root),
            options.toolchain,
            options.arch,
            options.jobs,
            options.warp_size,
            options.checked,
            verbose=True,
        )
    except LibraryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(path) + b"\n")  # a path is bytes, and the locale may not be able to print it
    return 0


def package_rows(root: Path) -> Sequence[Row]:
    """Return the rows of the dispatch table of the package in the folder ``root``.

    The function imports only the package's dispatch.py, which does not need torch. Raises LibraryError if dispatch.py
    is missing or can't be imported.
    """
    name = f"pav2_rows_of_{abs(hash(str(root)))}"
    package = types.ModuleType(name)
    package.__path__ = [str(root)]
    sys.modules[name] = package
    table = root / "dispatch.py"
    if not table.is_file():
        raise LibraryError(f"{root} is not a generated package: it has no dispatch.py")
    try:
        rows: Sequence[Row] = importlib.import_module(f"{name}.dispatch").ROWS
        kernels_of(rows, root)
    except Exception as error:  # the import runs the code of dispatch.py, which may raise anything
        what = f"{type(error).__name__}: {error}"
        raise LibraryError(f"{table} can't be imported ({what}); build the package again") from None
    return rows
