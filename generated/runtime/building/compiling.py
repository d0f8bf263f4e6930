"""Compiles CUDA sources in parallel and links them into one library.

The cached library's file name contains a hash of the sources, the compiler flags and the compiler.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .. import simt
from ..simt.cache import identity
from .cache import Failures, cache_folder, locked
from .library_record import SECTION, Record, closure, source_digests
from .toolchain import Toolchain

#: The type of a function that is called after each command of a build (a compiler or linker run). Its arguments are the
#: number of finished commands, the number of all commands, and the file that the command made.
Progress = Callable[[int, int, Path], None]

#: The largest number of sources that g++ compiles in one run, because reading the headers takes longer than compiling
#: some kernels. Sources can be combined because each source has its own namespace and defines no macros.
BATCH = 12

#: The kernels of a library: a mapping from the name of a kernel's entry function to the kernel's CUDA source.
Kernels = Mapping[str, Path]


class Plan(NamedTuple):
    """The commands that build a library.

    compile: the commands that make object files.
    link: a function that returns the command that links the object files.
    out: the path of the library.
    """

    compile: Sequence[simt.Command]
    link: Callable[[], simt.Command]
    out: Path


def quiet(done: int, total: int, made: Path) -> None:
    """Report no progress: a ``Progress`` function that does nothing."""


def on_stderr(done: int, total: int, made: Path) -> None:
    """Report the progress of a build on one line of stderr, which each later report overwrites.

    done: the number of finished commands. total: the number of all commands. made: the file that the last command made.
    """
    end = "\n" if done == total else "\r"
    print(f"[{done:>3}/{total}] {made.name[:70]:<70}", end=end, file=sys.stderr, flush=True)


def build_gpu(
    kernels: Kernels, toolchain: Toolchain, jobs: int, progress: Progress = quiet, again: bool = True
) -> Path:
    """Build a GPU library that contains ``kernels``, unless the cache already has the library. Return the library's
    path.

    jobs: the number of compiler processes that run in parallel.
    progress: a function that is called after each command.
    again: whether to repeat a build that failed earlier.

    Raises simt.CompileError, with the compiler's output, if a command fails. Raises FailedBeforeError if an earlier
    build failed and ``again`` is false.
    """
    folder = toolchain_folder(toolchain.name)
    record = Record(
        toolchain.name, toolchain.arch, toolchain.warp_size, False, toolchain.version, source_digests(kernels)
    )
    sources = [*kernels.values(), write_index(folder, record)]
    compiler = identity(toolchain.compiler) + toolchain.version
    objects = [folder / f"{source.stem}-{object_name(source, toolchain, compiler)}.o" for source in sources]
    name = sha("\n".join(path.name for path in objects), compiler, *toolchain.link_flags)
    library = folder / f"pav2-{name}.so"
    compile = [toolchain.compile(source, out) for source, out in zip(sources, objects)]
    return make(Plan(compile, lambda: toolchain.link(objects, library), library), jobs, progress, again)


class HostBuild(NamedTuple):
    """The options for compiling a library that runs on the CPU.

    warp_size: the number of threads in a warp of the simulated GPU.
    checked: whether the kernels check and count all their memory accesses.
    quick: whether to compile with fewer optimisations, which takes about half the time but makes the kernels slower.
    """

    warp_size: int = 64
    checked: bool = False
    quick: bool = False


def build_host(kernels: Kernels, kind: HostBuild, jobs: int, progress: Progress = quiet, again: bool = True) -> Path:
    """Build a CPU library that contains ``kernels`` and the code that simulates a GPU. Return the library's path.

    kind: the options of the build. The other parameters and the errors are the same as those of ``build_gpu``.
    """
    folder = toolchain_folder("host")
    version = simt.find_compiler(kind.checked).version
    record = Record("host", platform.machine(), kind.warp_size, kind.checked, version, source_digests(kernels))
    sources = [*batches(folder, kernels.values()), write_index(folder, record)]
    flags = ["-O1"] if kind.quick and not kind.checked else []
    plan = simt.compile_commands(
        sources, None, warp_size=kind.warp_size, checked=kind.checked, flags=flags, cache_dir=folder
    )
    return make(Plan(plan.compile, plan.link, plan.out), jobs, progress, again)


def batches(folder: Path, sources: Iterable[Path]) -> Iterator[Path]:
    """Combine CUDA sources into fewer source files, so that the compiler reads their common headers less often.

    Each written file contains an ``#include`` line for each of up to ``BATCH`` CUDA sources. The CUDA sources of a
    written file include headers from the same folders. A written file may contain kernels of several specs. The
    function yields the paths of the written files.

    folder: the folder for the written files.
    sources: the paths of the CUDA sources.
    """

    def folders(source: Path) -> list[str]:
        files = closure(os.path.abspath(source), lambda name: Path(name).read_bytes())
        return sorted({os.path.dirname(name) for name in files if name != os.path.abspath(source)})

    keyed = sorted((folders(source), os.path.abspath(source)) for source in sources)
    for _, found in itertools.groupby(keyed, key=lambda pair: pair[0]):
        names = [name for _, name in found]
        for first in range(0, len(names), BATCH):
            lines = [f'#include "{name}"\n' for name in names[first : first + BATCH]]
            yield write_source(folder, "batch", "".join(lines))


def toolchain_folder(name: str) -> Path:
    """Return the cache folder for the libraries of the toolchain ``name``: corex, nvcc or host. Create the folder if
    necessary.

    Raises simt.CacheError if other users can write to the folder, or if the folder cannot be created.
    """
    return simt.own_folder(simt.own_folder(cache_folder()) / name)


def make(plan: Plan, jobs: int, progress: Progress, again: bool) -> Path:
    """Build the library of ``plan``, unless the cache has an undamaged copy. Return the library's path.

    If several processes need the library, one process builds the library while the others wait. The function records a
    failed build on the disk. Raises simt.CompileError and FailedBeforeError, as ``build_gpu`` does.
    """
    failures = Failures(plan.out)
    if not again:
        failures.raise_known()
    with locked(plan.out):
        digests = simt.Digests()
        if not simt.is_current(plan.out, digests):
            failures.raise_new()
            try:
                run_all([c for c in plan.compile if not simt.is_current(c.output, digests)], plan, jobs, progress)
            except simt.CompileError as error:
                failures.remember(error)
                raise
            simt.note_library(plan.out, [command.output for command in plan.compile], digests)
        failures.forget()
    return plan.out


def run_all(commands: Sequence[simt.Command], plan: Plan, jobs: int, progress: Progress) -> None:
    """Run ``commands`` in parallel, and then run the link command of ``plan``. The first failing command stops the
    build.

    jobs: the number of ``commands`` that run at the same time.
    progress: a function that is called after each command.
    """
    total = len(commands) + 1
    with concurrent.futures.ThreadPoolExecutor(max(1, jobs)) as pool:
        running = {pool.submit(simt.run_command, command): command for command in commands}
        try:
            for done, future in enumerate(concurrent.futures.as_completed(running), 1):
                future.result()
                progress(done, total, running[future].output)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    command = plan.link()
    simt.run_command(command)
    progress(total, total, command.output)


def write_index(folder: Path, record: Record) -> Path:
    """Write a C source that contains the record of the library and the function ``pav2_kernels``. Return the source's
    path.

    The C function ``pav2_kernels()`` returns the names of the entry functions of all kernels in the library, one per
    line.
    """
    lines = "".join(f'\n        "{name}\\n"' for name in record.kernels)
    text = f"""// The kernels of this library, and the record of what it was compiled from.
extern "C" {{
__attribute__((visibility("default"))) const char* pav2_kernels() {{
    return{lines}
        "";
}}
__attribute__((used, section("{SECTION}"))) extern const char pav2_record[] =
    {quoted(record.text())};
}}
"""
    return write_source(folder, "index", text)


def write_source(folder: Path, stem: str, text: str) -> Path:
    """Write ``text`` to a source file in ``folder``. Return the file's path, which contains ``stem`` and a hash of the
    text.
    """
    path = folder / f"{stem}-{sha(text)}.cu"
    temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    temporary.write_bytes(os.fsencode(text))
    os.replace(temporary, path)
    return path


def quoted(text: str) -> str:
    """Return an ASCII text as a C string literal on several lines."""
    escaped = [text[i : i + 100].replace("\\", "\\\\").replace('"', '\\"') for i in range(0, len(text), 100)]
    return "\n    ".join(f'"{piece}"' for piece in escaped)


def object_name(source: Path, toolchain: Toolchain, compiler: str) -> str:
    """Return the hash that the name of an object file contains.

    The hash depends on the path and text of ``source``, the compile flags of ``toolchain``, and ``compiler``. The hash
    does not depend on headers, because ``make`` checks whether headers have changed.

    compiler: the compiler's identity and version as text.
    """
    return sha(
        os.path.abspath(source), source.read_text("utf-8", "surrogateescape"), compiler, *toolchain.compile_flags
    )


def sha(*texts: str) -> str:
    """Return a short hash of ``texts`` for file names."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:20]
