"""Compiles CUDA sources into one library: in parallel, cached by content, complete or not at all."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from . import simt
from .toolchain import Toolchain

HEADERS = Path(__file__).resolve().parent / "cuda"

#: Called after each command with the number done, the number of all, and the file made.
Progress = Callable[[int, int, Path], None]

#: The sources of a library by the names of their entry functions.
Kernels = Mapping[str, Path]


def cache_folder() -> Path:
    """Where libraries are kept: PAV2_CACHE, or pav2 in the platform's cache folder."""
    if os.environ.get("PAV2_CACHE"):
        return Path(os.environ["PAV2_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pav2"


def quiet(done: int, total: int, made: Path) -> None:
    """Progress that says nothing."""


def on_stderr(done: int, total: int, made: Path) -> None:
    """Progress as one line on stderr, written over and over."""
    end = "\n" if done == total else "\r"
    print(f"[{done:>3}/{total}] {made.name[:70]:<70}", end=end, file=sys.stderr, flush=True)


def build_gpu(kernels: Kernels, toolchain: Toolchain, jobs: int, progress: Progress = quiet) -> Path:
    """The library of ``kernels`` for a GPU. Raises simt.CompileError, with the compiler's words, if a command fails."""
    folder = cache_folder() / toolchain.name
    folder.mkdir(parents=True, exist_ok=True)
    sources = [*kernels.values(), write_index(folder, list(kernels))]
    objects = [folder / f"{source.stem}-{digest_of(source, toolchain)}.o" for source in sources]
    name = sha("\n".join(path.name for path in objects), *toolchain.link_flags)
    library = folder / f"pav2-{name}.so"
    with locked(library):
        if not simt.is_whole(library):
            missing = [toolchain.compile(s, o) for s, o in zip(sources, objects) if not simt.is_whole(o)]
            run_all(missing, lambda: toolchain.link(objects, library), jobs, progress)
    return library


def build_host(kernels: Kernels, warp_size: int, checked: bool, jobs: int, progress: Progress = quiet) -> Path:
    """The library of ``kernels`` for the CPU, with the runtime that executes it. Raises as ``build_gpu``."""
    folder = cache_folder() / "host"
    folder.mkdir(parents=True, exist_ok=True)
    sources = [*kernels.values(), write_index(folder, list(kernels))]
    plan = simt.compile_commands(sources, None, warp_size=warp_size, checked=checked, cache_dir=folder)
    with locked(plan.out):
        if not simt.is_whole(plan.out):
            run_all([c for c in plan.compile if not simt.is_whole(c.output)], plan.link, jobs, progress)
    return plan.out


def run_all(commands: Sequence[simt.Command], last: Callable[[], simt.Command], jobs: int, progress: Progress) -> None:
    """Run ``commands`` side by side, then the ``last`` one. The first that fails ends it."""
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
    command = last()
    simt.run_command(command)
    progress(total, total, command.output)


def write_index(folder: Path, names: Sequence[str]) -> Path:
    """A source whose function ``pav2_kernels`` lists the kernels of a library, one name a line."""
    lines = "".join(f'\n        "{name}\\n"' for name in names)
    text = f"""// The kernels of this library.
extern "C" __attribute__((visibility("default"))) const char* pav2_kernels() {{
    return{lines}
        "";
}}
"""
    path = folder / f"index-{sha(text)}.cu"
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        temporary.write_text(text)
        os.replace(temporary, path)
    return path


def digest_of(source: Path, toolchain: Toolchain) -> str:
    """All that goes into an object: source, headers, flags, and what the compiler says of itself."""
    headers = [header.read_text() for header in sorted(HEADERS.iterdir())]
    return sha(source.read_text(), *headers, toolchain.compiler, toolchain.version, *toolchain.compile_flags)


def sha(*texts: str) -> str:
    """A short name for some texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]


@contextlib.contextmanager
def locked(library: Path) -> Iterator[None]:
    """One builder at a time for a library; the next finds it made."""
    with open(library.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
