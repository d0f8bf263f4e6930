"""Compiles CUDA kernels with nvcc, only to learn how many registers ptxas assigns to them.

The sources are rendered into a temporary folder and compiled in parallel. One nvcc process compiles several kernels,
because reading CUDA's headers takes longer than compiling a few kernels. What ptxas prints about each kernel is kept in
the cache of compiled files. The name of a cache entry is a hash of the source, the headers, the flags, and the
compiler.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pav2gen.bench.registers.ptxas_output import Usage, usage_of, usages
from pav2gen.errors import UserError
from pav2gen.plan.kernel import AnyKernel
from pav2gen.reading.selection import Selection
from pav2gen.render.kernels import render_spec, runtime_files
from pav2gen.render.templates import Templates
from pav2gen.runtime import simt
from pav2gen.runtime.building.cache import cache_folder
from pav2gen.runtime.building.compiling import sha
from pav2gen.runtime.building.toolchain import CompilerMissingError, Toolchain, nvcc
from pav2gen.runtime.simt.cache import for_compilers, identity, read_json, write_note

#: The architecture to compile for if the spec's target is not an NVIDIA GPU.
DEFAULT_ARCH = "sm_75"

#: One nvcc process compiles at most this many sources.
BATCH = 12

#: An nvcc process that takes more seconds than this is stopped.
TIME_LIMIT = 300

#: A function that is called after each nvcc process. It takes the number of finished processes and of all processes.
Progress = Callable[[int, int], None]


def quiet(done: int, total: int) -> None:
    """Do nothing. The function serves as the ``Progress`` of a caller that shows no progress."""


@dataclass(frozen=True)
class Measured:
    """What ptxas printed about the CUDA kernels of a spec.

    usages: a dict from the symbol of each kernel to its usage of registers and memory.
    compiler, arch: the version of the compiler and the architecture for which the usage is valid.
    """

    usages: Mapping[str, Usage]
    compiler: str
    arch: str


@dataclass(frozen=True)
class _Source:
    """A kernel, the path of its CUDA source, and the path of the cache entry for its usage of registers and memory."""

    kernel: AnyKernel
    path: str
    entry: Path


def measure(chosen: Selection, arch: str | None = None, progress: Progress = quiet) -> Measured:
    """Find how many registers and how much memory each CUDA kernel of ``chosen`` uses.

    Kernels in the cache are not compiled again.

    arch: an architecture such as sm_75. The default is the spec's target if it is an NVIDIA GPU, else ``DEFAULT_ARCH``.

    Raises UserError if nvcc is missing, fails, takes too long, or does not print the usage. Also raises UserError if
    the cache cannot be used.
    """
    arch = arch or (chosen.spec.target.arch if chosen.spec.target.arch.startswith("sm_") else DEFAULT_ARCH)
    if "cuda" not in chosen.spec.backends:
        return Measured({}, "", arch)
    try:
        compiler = nvcc(arch)
        folder = simt.own_folder(simt.own_folder(cache_folder()) / "ptxas")
    except CompilerMissingError as error:
        raise UserError(f"--ptxas needs nvcc: {error}; without --ptxas, the plan's estimate is shown") from None
    except simt.CacheError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"nvcc cannot be run: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix="pav2-ptxas-") as place:
        sources = _write(chosen, Path(place), folder, compiler)
        found = {source.path: Usage.read(read_json(source.entry)) for source in sources}
        missing = [source for source in sources if found[source.path] is None]
        for source, usage in _compile(missing, Path(place), compiler, progress):
            write_note(source.entry, usage.document())
            found[source.path] = usage
    known = {source.kernel.v.symbol: found[source.path] for source in sources}
    return Measured({symbol: usage for symbol, usage in known.items() if usage}, compiler.version, arch)


def _write(chosen: Selection, place: Path, folder: Path, compiler: Toolchain) -> list[_Source]:
    """Write the CUDA sources of ``chosen`` and their headers below the folder ``place``.

    Return a ``_Source`` for each kernel.

    folder: the folder of the cache entries.
    """
    kernels = {kernel.v.cuda_path: kernel for kernel in chosen.built}
    headers = {path: content for path, content in runtime_files() if path.startswith("runtime/cuda/")}
    files = render_spec(chosen.spec, chosen.built, Templates())
    rendered = {path: content for path, content in files.items() if path in kernels}
    for path, content in {**headers, **rendered}.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    every = [f"{path} {sha(content.decode('utf-8', 'surrogateescape'))}" for path, content in headers.items()]
    made_by = (identity(compiler.compiler), compiler.version, *compiler.compile_flags, *every)
    return [
        _Source(kernels[path], path, folder / f"{sha(_code(content.decode('utf-8')), *made_by)}.json")
        for path, content in rendered.items()
    ]


def _code(source: str) -> str:
    """Return a CUDA source without the comment at its top, which has the name and the digest of the spec's file."""
    return source[source.index("\n#include") :]


def _compile(
    sources: Sequence[_Source], place: Path, compiler: Toolchain, progress: Progress
) -> list[tuple[_Source, Usage]]:
    """Compile ``sources``, several with each nvcc process, and return the usage of each kernel.

    If one process fails, all others are stopped.
    """
    workers = os.cpu_count() or 1
    size = min(BATCH, max(1, -(-len(sources) // workers)))
    batches = [sources[first : first + size] for first in range(0, len(sources), size)]
    found: list[tuple[_Source, Usage]] = []
    started: list[subprocess.Popen[str]] = []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(_run, number, each, place, compiler, started) for number, each in enumerate(batches)]
        try:
            for done, future in enumerate(concurrent.futures.as_completed(running), 1):
                found += future.result()
                progress(done, len(batches))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                _stop(process)
            raise
    return found


def _run(
    number: int, batch: Sequence[_Source], place: Path, compiler: Toolchain, started: list[subprocess.Popen[str]]
) -> list[tuple[_Source, Usage]]:
    """Compile the sources of ``batch`` with one nvcc process, and return the usage of their kernels.

    number: a number that is unique for the batch, for the names of its files in the folder ``place``.
    started: the list to which the nvcc process is added, so that another thread can stop it.
    """
    source, out = place / f"batch{number}.cu", place / f"batch{number}.cubin"
    source.write_text("".join(f'#include "{each.path}"\n' for each in batch), encoding="utf-8")
    command = [compiler.compiler, *compiler.compile_flags, "-cubin", "-Xptxas=-v", source.name, "-o", out.name]
    named = f"{batch[0].kernel.v.slug}{f' and {len(batch) - 1} more' if batch[1:] else ''}"
    try:
        process = subprocess.Popen(
            command, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", errors="replace", env=for_compilers(), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise UserError(f"{compiler.compiler} cannot be run: {error.strerror}") from None
    started.append(process)
    try:
        said, _ = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        _stop(process)
        raise UserError(f"nvcc did not compile {named} in {TIME_LIMIT} s; choose fewer kernels with --filter") from None
    if process.returncode != 0:
        raise UserError(f"nvcc failed to compile {named} for {compiler.arch}: {_reason(said, process.returncode)}")
    found = usages(said)
    result = [(each, usage_of(each.kernel, found)) for each in batch]
    for each, usage in result:
        if usage is None:
            slug, line = each.kernel.v.slug, _reason(said, 0)
            raise UserError(f"nvcc compiled {slug} and did not print its registers; it printed: {line}")
    return [(each, usage) for each, usage in result if usage]


def _stop(process: subprocess.Popen[str]) -> None:
    """Kill a compiler process if it still runs, and the processes that it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _reason(output: str, code: int) -> str:
    """Return the line of a compiler's output that says what went wrong.

    code: the compiler's exit status, for the message if the output is empty.
    """
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    return (errors or lines or [f"no output, exit code {code}"])[0]
