"""Finds the GPU compilers, CoreX clang++ and nvcc, and makes their command lines.

The command lines of CoreX are known to work on a BI-V100: CoreX 3.2.3 accepts clang++ with --cuda-gpu-arch=ivcore10.
CoreX also has an "nvcc", which is only a script that prints a version. The CUDA sources include no torch headers and
export C functions, so a library works with every version of torch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..simt import Command
from ..simt.cache import for_compilers, nvcc_folder

COREX_PLACES = ("/usr/local/corex", "/usr/local/corex-3.2.3")
TOOLCHAINS = ("corex", "nvcc", "host")


class CompilerMissingError(Exception):
    """The compiler of a toolchain is missing.

    The message lists the places that were searched, and says how to fix this.
    """


@dataclass(frozen=True)
class Toolchain:
    """A GPU compiler with the flags for one GPU architecture. ``warp_size`` is the warp size of GPUs with the
    architecture ``arch``.
    """

    name: str
    compiler: str
    version: str
    arch: str
    warp_size: int
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]

    def compile(self, source: Path, out: Path) -> Command:
        """Return the command that compiles ``source`` to the object file ``out``."""
        return Command((self.compiler, *self.compile_flags, "-c", str(source), "-o", str(out)), out)

    def link(self, objects: Sequence[Path], out: Path) -> Command:
        """Return the command that links ``objects`` to the library ``out``."""
        return Command((self.compiler, "-shared", *map(str, objects), *self.link_flags, "-o", str(out)), out)


def corex(arch: str = "ivcore10") -> Toolchain:
    """Return the toolchain of CoreX's clang++, which is searched in COREX_HOME, else in the standard folders.

    Raises CompilerMissingError if there is no clang++.
    """
    places = (os.environ["COREX_HOME"],) if os.environ.get("COREX_HOME") else COREX_PLACES
    home = next((place for place in places if Path(place, "bin", "clang++").exists()), None)
    if home is None:
        raise CompilerMissingError(f"no CoreX compiler: looked for bin/clang++ in {', '.join(places)}; set COREX_HOME")
    compiler = str(Path(home, "bin", "clang++"))
    libraries = str(Path(home, "lib64"))
    flags = ("-std=c++17", "-O3", "-fPIC", f"--cuda-path={home}", f"--cuda-gpu-arch={arch}", "--no-cuda-version-check")
    link = (f"-L{libraries}", "-lcudart", f"-Wl,-rpath,{libraries}")
    return Toolchain("corex", compiler, version(compiler), arch, 64, (*flags, "-DPAV2_WARP_SIZE=64"), link)


def nvcc(arch: str) -> Toolchain:
    """Return the toolchain of NVIDIA's nvcc. Raises CompilerMissingError if ``cuda_program`` finds no nvcc."""
    compiler = cuda_program("nvcc")
    if compiler is None:
        raise CompilerMissingError(
            f"no nvcc on the path or in {cuda_home()}/bin, and no pip package of NVIDIA has one; set CUDA_HOME"
        )
    flags = ("-std=c++17", "-O3", f"-arch={arch}", "-Xcompiler", "-fPIC,-fvisibility=hidden", "-DPAV2_WARP_SIZE=32")
    return Toolchain("nvcc", compiler, version(compiler), arch, 32, flags, ("-cudart", "shared", f"-arch={arch}"))


def cuda_home() -> str:
    """Return the folder of the CUDA toolkit: the value of CUDA_HOME, else ``/usr/local/cuda``. The folder may be
    missing.
    """
    return os.environ.get("CUDA_HOME") or "/usr/local/cuda"


def cuda_program(name: str) -> str | None:
    """Return the path of a program of the CUDA toolkit, such as nvcc or cuobjdump, or None if it is not found.

    The program is searched on PATH, in the toolkit's folder, in NVIDIA's pip packages, and in the folder of nvcc. An
    nvcc on PATH may be a script in another folder, so nvcc itself is asked for its folder.
    """
    for folder in (None, str(Path(cuda_home(), "bin")), *map(str, pip_folders())):
        if found := shutil.which(name, path=folder):
            return found
    compiler = cuda_program("nvcc") if name != "nvcc" else None
    return shutil.which(name, path=nvcc_folder(compiler)) if compiler else None


def pip_folders() -> list[Path]:
    """Return the folders with programs of NVIDIA's pip packages, such as ``nvidia/cu13/bin``, that this Python has."""
    return [folder for place in sys.path for folder in sorted(Path(place, "nvidia").glob("*/bin"))]


def version(compiler: str) -> str:
    """Return the output of ``compiler --version`` as one line. The record in each library contains this text."""
    asked = [compiler, "--version"]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", errors="replace", env=for_compilers())
    return " ".join(done.stdout.split())


def cuda_major(version: str) -> str:
    """Return the major version of CUDA in ``version``, the output of ``nvcc --version``, or an empty string if it has
    none.
    """
    found = re.search(r"release (\d+)\.", version)
    return found[1] if found else ""
