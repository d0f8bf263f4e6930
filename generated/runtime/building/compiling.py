"""Compiles CUDA sources in parallel and links them into one library. A library is cached under a hash of its sources,
flags and compiler.
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
    """The steps that build a library.

    compile: the commands that make object files. link: makes the command that links them. out: the path of the library.
    """

    compile: Sequence[simt.Command]
    link: Callable[[], simt.Command]
    out: Path


def quiet(done: int, total: int, made: Path) -> None:
    """Report no progress: a ``Progress`` function that does nothing."""


def on_stderr(done: int, total: int, made: Path) -> None:
    """Report progress on one line of stderr, which is overwritten after each command (a ``Progress`` function)."""
    end = "\n" if done == total else "\r"
    print(f"[{done:>3}/{total}] {made.name[:70]:<70}", end=end, file=sys.stderr, flush=True)


def build_gpu(
    kernels: Kernels, toolchain: Toolchain, jobs: int, progress: Progress = quiet, again: bool = True
) -> Path:
    """Build a library with ``kernels`` for a GPU, unless the cache has it already. Returns the library's path.

    jobs: the number of compilers that run at the same time.
    progress: reports on each finished command.
    again: whether to repeat a build that failed before.
    Raises simt.CompileError, with the compiler's output, if a command fails. Raises FailedBeforeError if the build
    failed before and ``again`` is false.
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

    warp_size: the warp size of the simulated GPU.
    checked: whether the kernels check and count all their memory accesses.
    quick: whether to compile with fewer optimisations, for tests. Compiling then takes about half the time, but the
    kernels run more slowly.
    """

    warp_size: int = 64
    checked: bool = False
    quick: bool = False


def build_host(kernels: Kernels, kind: HostBuild, jobs: int, progress: Progress = quiet, again: bool = True) -> Path:
    """Build a library for the CPU with ``kernels`` and the code that simulates a GPU for them. Returns its path.

    kind: the options. ``build_gpu`` describes the other parameters and the errors.
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
    """Write source files into ``folder`` that each ``#include`` up to ``BATCH`` of ``sources``, and yield their paths.

    The compiler then reads only once the headers that these sources share. A batch may contain kernels of several
    specs, because many specs have fewer kernels than a batch. All sources of a batch include headers from the same
    folders.
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
    """Return the cache folder for the libraries of the toolchain ``name``: corex, nvcc or host. Creates the folder.

    Raises simt.CacheError if other users can write to the folder, or if it cannot be created.
    """
    return simt.own_folder(simt.own_folder(cache_folder()) / name)


def make(plan: Plan, jobs: int, progress: Progress, again: bool) -> Path:
    """Build the library of ``plan``, unless the cache has an undamaged one. Returns the library's path.

    If several processes need the library, one process builds it and the others wait. A failed build is recorded. Raises
    simt.CompileError and FailedBeforeError, as ``build_gpu`` does.
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
    """Run ``commands`` in parallel, and then the link command of ``plan``. The first command that fails stops the
    build. jobs: how many of ``commands`` run at the same time.
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
    """Write a C source into ``folder`` with the record of the library and the function ``pav2_kernels``. Returns its
    path.

    ``pav2_kernels()`` returns the names of the entry functions of all kernels in the library, one per line.
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
    """Write ``text`` to a source file in ``folder``, named ``stem`` and a hash of the text. Returns its path."""
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
    """Return the hash in the name of an object file. The name is a hash of the path and text of ``source``, the compile
    flags of ``toolchain``, and ``compiler``. Headers are not part of it: ``make`` checks whether headers have changed.

    compiler: the identity and the version of the compiler, as text.
    """
    return sha(
        os.path.abspath(source), source.read_text("utf-8", "surrogateescape"), compiler, *toolchain.compile_flags
    )


def sha(*texts: str) -> str:
    """A short hash of ``texts``, for file names."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:20]
