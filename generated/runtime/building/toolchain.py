"""Finds the GPU compilers and makes their command lines.

The compilers are NVIDIA's nvcc, and the clang++ of CoreX, the software for Iluvatar GPUs. The CoreX command lines work
for the BI-V100 GPU: clang++ of CoreX 3.2.3 accepts --cuda-gpu-arch=ivcore10. CoreX also has a program named nvcc, but
this program is a script that only prints a version.

A compiled library works with every version of torch, because the CUDA sources include no torch headers and export only
C functions.
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

    The message lists the searched places, and says how to solve the problem.
    """


@dataclass(frozen=True)
class Toolchain:
    """A GPU compiler with its flags for one GPU architecture.

    version: the output of the compiler's option --version.
    arch: the GPU architecture, such as sm_75. warp_size: the warp size of GPUs with this architecture.
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
        """Return the command that links the object files ``objects`` to the library ``out``."""
        return Command((self.compiler, "-shared", *map(str, objects), *self.link_flags, "-o", str(out)), out)


def corex(arch: str = "ivcore10") -> Toolchain:
    """Return the toolchain with the clang++ of CoreX.

    The function looks for clang++ in the folder that the environment variable COREX_HOME names. If COREX_HOME is not
    set, the function looks in the folders of ``COREX_PLACES``. Raises CompilerMissingError if clang++ is not found.

    arch: the GPU architecture. ivcore10 is the architecture of the BI-V100 GPU.
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
    """Return the toolchain with NVIDIA's nvcc. Raises CompilerMissingError if ``cuda_program`` does not find nvcc.

    arch: the GPU architecture, such as sm_75.
    """
    compiler = cuda_program("nvcc")
    if compiler is None:
        raise CompilerMissingError(
            f"no nvcc on the path or in {cuda_home()}/bin, and no pip package of NVIDIA has one; set CUDA_HOME"
        )
    flags = ("-std=c++17", "-O3", f"-arch={arch}", "-Xcompiler", "-fPIC,-fvisibility=hidden", "-DPAV2_WARP_SIZE=32")
    return Toolchain("nvcc", compiler, version(compiler), arch, 32, flags, ("-cudart", "shared", f"-arch={arch}"))


def cuda_home() -> str:
    """Return the folder of the CUDA toolkit, which may not exist.

    The folder is the value of CUDA_HOME, or ``/usr/local/cuda`` if CUDA_HOME is not set.
    """
    return os.environ.get("CUDA_HOME") or "/usr/local/cuda"


def cuda_program(name: str) -> str | None:
    """Return the path of a program of the CUDA toolkit, such as nvcc or cuobjdump, or None if the program is not found.

    The function searches PATH, the toolkit's folder, NVIDIA's pip packages, and the folder of nvcc, in this order. The
    nvcc on PATH may be a script in another folder than the real nvcc. The function therefore runs nvcc to learn the
    folder of the real nvcc.
    """
    for folder in (None, str(Path(cuda_home(), "bin")), *map(str, pip_folders())):
        if found := shutil.which(name, path=folder):
            return found
    compiler = cuda_program("nvcc") if name != "nvcc" else None
    return shutil.which(name, path=nvcc_folder(compiler)) if compiler else None


def pip_folders() -> list[Path]:
    """Return the program folders of NVIDIA's installed pip packages, such as ``nvidia/cu13/bin``."""
    return [folder for place in sys.path for folder in sorted(Path(place, "nvidia").glob("*/bin"))]


def version(compiler: str) -> str:
    """Return the output of ``compiler --version`` as one line.

    The record in each compiled library contains the returned text.
    """
    asked = [compiler, "--version"]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", errors="replace", env=for_compilers())
    return " ".join(done.stdout.split())


def cuda_major(version: str) -> str:
    """Return CUDA's major version from the output of ``nvcc --version``, or an empty string if the output states no
    version.

    version: the output of ``nvcc --version``.
    """
    found = re.search(r"release (\d+)\.", version)
    return found[1] if found else ""
