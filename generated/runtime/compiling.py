"""Compiles CUDA sources into one library: in parallel, cached by content, complete or not at all."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from . import simt
from .library_cache import Failures, cache_folder, locked
from .library_record import SECTION, Record, source_digests
from .simt.cache import identity
from .toolchain import Toolchain

#: Called after each command with the number done, the number of all, and the file made.
Progress = Callable[[int, int, Path], None]

#: The sources of a library by the names of their entry functions.
Kernels = Mapping[str, Path]


class Plan(NamedTuple):
    """How a library is built: the commands that compile, the one that links, and the library."""

    compile: Sequence[simt.Command]
    link: Callable[[], simt.Command]
    out: Path


def quiet(done: int, total: int, made: Path) -> None:
    """Progress that says nothing."""


def on_stderr(done: int, total: int, made: Path) -> None:
    """Progress as one line on stderr, written over and over."""
    end = "\n" if done == total else "\r"
    print(f"[{done:>3}/{total}] {made.name[:70]:<70}", end=end, file=sys.stderr, flush=True)


def build_gpu(
    kernels: Kernels, toolchain: Toolchain, jobs: int, progress: Progress = quiet, again: bool = True
) -> Path:
    """The library of ``kernels`` for a GPU. ``again``: whether to try a build that is known to have failed.

    Raises simt.CompileError, with the compiler's words, if a command fails; FailedBeforeError if it is not tried again.
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


def build_host(
    kernels: Kernels, warp_size: int, checked: bool, jobs: int, progress: Progress = quiet, again: bool = True
) -> Path:
    """The library of ``kernels`` for the CPU, with the runtime that executes it. Arguments and errors of build_gpu."""
    folder = toolchain_folder("host")
    version = simt.find_compiler(checked).version
    record = Record("host", platform.machine(), warp_size, checked, version, source_digests(kernels))
    sources = [*kernels.values(), write_index(folder, record)]
    plan = simt.compile_commands(sources, None, warp_size=warp_size, checked=checked, cache_dir=folder)
    return make(Plan(plan.compile, plan.link, plan.out), jobs, progress, again)


def toolchain_folder(name: str) -> Path:
    """The part of the cache for one toolchain. Raises simt.CacheError where it is not safe to use."""
    return simt.own_folder(simt.own_folder(cache_folder()) / name)


def make(plan: Plan, jobs: int, progress: Progress, again: bool) -> Path:
    """Build what is not in the cache as it should be; one process at a time does, the others find it made.

    A failure is remembered until something changes of what the library's name stands for.
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
    """Run ``commands`` side by side, then the plan's last one. The first that fails ends it."""
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
    """A source with what the library says of itself: its record, and the function ``pav2_kernels``.

    ``pav2_kernels()`` lists the kernels, one name a line.
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
    path = folder / f"index-{sha(text)}.cu"
    temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return path


def quoted(text: str) -> str:
    """A text in ASCII as a C string, in pieces of a line's length."""
    escaped = [text[i : i + 100].replace("\\", "\\\\").replace('"', '\\"') for i in range(0, len(text), 100)]
    return "\n    ".join(f'"{piece}"' for piece in escaped)


def object_name(source: Path, toolchain: Toolchain, compiler: str) -> str:
    """What goes into an object and is in no header: the source, its place, the flags, the compiler."""
    return sha(
        os.path.abspath(source), source.read_text("utf-8", "surrogateescape"), compiler, *toolchain.compile_flags
    )


def sha(*texts: str) -> str:
    """A short name for some texts."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:20]
