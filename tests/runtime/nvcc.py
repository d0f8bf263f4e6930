"""Compiles CUDA sources with nvcc, for compute capability 7.5. Later runs reuse the result, by its content."""

import concurrent.futures
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from pav2gen.runtime import simt
from pav2gen.runtime.building.cache import cache_folder
from pav2gen.runtime.building.compiling import sha, write_source
from pav2gen.runtime.building.library_record import closure
from pav2gen.runtime.building.toolchain import cuda_program
from pav2gen.runtime.simt.cache import identity

FLAGS = (
    *("-std=c++17", "-O3", "-arch=sm_75", "-cubin", "-lineinfo"),
    *("-Xptxas=-v", "-Werror=all-warnings", "-DPAV2_WARP_SIZE=32"),
)


class Cubin(NamedTuple):
    """What nvcc made of some sources, and what ptxas says of them."""

    path: Path
    said: str


tool = cache(cuda_program)


def required(*found: object, what: str) -> None:
    """Skip if something was not found. On CI, which installs all of it, fail."""
    if None in found:
        pytest.fail(f"{what}: CI installs it") if os.environ.get("CI") else pytest.skip(f"{what}: not on this machine")


def compile_all(batches: Iterable[Sequence[Path]]) -> list[Cubin]:
    """Compile batches of sources, each as one source: reading CUDA's headers takes as long as a kernel."""
    required(tool("nvcc"), what="nvcc")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, batches))


def compiled(sources: Sequence[Path]) -> Cubin:
    """Compile some sources as one. Each has a namespace of its own."""
    folder = simt.own_folder(simt.own_folder(cache_folder()) / "nvcc_tests")
    source = write_source(folder, "batch", including(sources))
    texts = {name: text for path in sources for name, text in closure(str(path), read).items()}
    name = sha(identity(str(tool("nvcc"))), *FLAGS, *(part for pair in sorted(texts.items()) for part in pair))
    made = Cubin(folder / f"{name}.cubin", "")
    notes = made.path.with_suffix(".txt")
    if not notes.exists():
        temporary = made.path.with_suffix(f".{os.getpid()}.cubin")
        command = [str(tool("nvcc")), *FLAGS, str(source), "-o", str(temporary)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        os.replace(temporary, made.path)
        noted = notes.with_suffix(f".{os.getpid()}.txt")
        noted.write_text(done.stderr)
        os.replace(noted, notes)  # last: it says that the cubin is complete
    return made._replace(said=notes.read_text())


def read(name: str) -> bytes:
    return Path(name).read_bytes()


def including(sources: Iterable[Path]) -> str:
    """The text of a source that includes others."""
    return "".join(f'#include "{source}"\n' for source in sources)


def mangled(symbol: str, kernel: str) -> str:
    """The end of the mangled name of a kernel in the namespace of a source."""
    return f"{symbol.removeprefix('pav2_')}{len(kernel)}{kernel}E"


def usages(said: str, kernel: str) -> list[tuple[int, int, int]]:
    """(registers, spilled bytes, shared bytes) that ptxas reports of each kernel with this part in its mangled name."""
    entries = re.split(r"Compiling entry function ", said)[1:]
    return [usage(entry) for entry in entries if kernel in entry.split("'")[1]]


def usage(entry: str) -> tuple[int, int, int]:
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", entry)
    used = re.search(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?", entry)
    assert spilled and used, entry
    return int(used[1]), sum(map(int, spilled.groups())), int(used[2] or 0)
