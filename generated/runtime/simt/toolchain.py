"""Finds a C++ compiler, and composes the command lines that compile CUDA sources into a library for the CPU."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: The folder with the simulator's headers, which take the place of CUDA's headers, and with the simulator's own source,
#: RUNTIME_SOURCE.
INCLUDE = Path(__file__).resolve().parent / "include"
RUNTIME_SOURCE = INCLUDE / "simt.cpp"
#: The script with which a checked build compiles a CUDA source. It changes the assembly code of the compiler.
ASSEMBLE = Path(__file__).resolve().with_name("assemble.py")
#: The largest dynamic shared memory that a thread block can have on the CPU, in bytes.
DYNAMIC_SHARED_CAPACITY = 128 << 10

_COMMON = (
    "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=off",
    "-Wno-unknown-pragmas", "-Wno-attributes",
)  # fmt: skip
# When a function begins, it touches its local arrays page by page. A large array then hits the guard pages below the
# thread's stack, instead of reaching beyond them.
_STACK = ("-fstack-clash-protection",)
# Line numbers, for findings and counters. DWARF 4, because with DWARF 5 addr2line ignores the file names of `#line`.
# Locations of variables are left out: nothing reads them, and they take a third of the compile time.
_DEBUG = ("-g1", "-gdwarf-4", "-fno-var-tracking")
# -O3 without vectorization: short loops are unrolled, and the other passes of -O3 take little time.
_FAST = ("-O3", "-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fwrapv")
# The last three flags insert calls of the checks at memory accesses, basic blocks and undefined arithmetic. The other
# flags keep the code in the order of the source, and do not split vector accesses.
_CHECKED = (
    "-O1", "-finline-functions", "-finline-small-functions", "-findirect-inlining", "-fpartial-inlining",
    "-fno-tree-sra", "-fno-ipa-sra", "-fno-reorder-blocks", "-fno-reorder-blocks-and-partition",
    "-fno-crossjumping", "-fno-tree-tail-merge", "-fno-thread-jumps",
    "-fsanitize=thread", "-fsanitize-coverage=trace-pc",
    "-fsanitize=bounds,signed-integer-overflow,integer-divide-by-zero",
)  # fmt: skip

# ELF object files: the types of a symbol table and of a thread-local symbol; the layouts of sections and symbols.
_SYMTAB = 2
_TLS = 6
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class ToolchainError(Exception):
    """The C++ compiler, or the folder for compiled files, is missing or cannot be used.

    The exception's message gives the reason.
    """


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    `path`: the path of the compiler.
    `version`: the first line that the compiler prints for `--version`.
    """

    path: str
    version: str

    @property
    def is_clang(self) -> bool:
        """Whether the compiler is clang.

        Clang needs other flags than g++, and cannot compile kernels with checks of their memory accesses.
        """
        return "clang" in self.version


@dataclass(frozen=True)
class Command:
    """A command that compiles or links files.

    `argv`: the words of the command line.
    `output`: the path of the file that the command creates.
    """

    argv: tuple[str, ...]
    output: Path

    def __str__(self) -> str:
        return shlex.join(self.argv)


@dataclass(frozen=True)
class Plan:
    """The commands that build a library for the CPU from CUDA sources.

    `compile`: the commands that compile the sources to object files, in any order or in parallel.
    `out`: the path of the library.
    `checked`: whether the library checks and counts memory accesses.
    `program`: whether an executable program is built instead of a library.
    `flags`: the compiler flags of the link command.
    """

    compile: tuple[Command, ...]
    out: Path
    compiler: Compiler
    warp_size: int
    checked: bool
    program: bool = False
    flags: tuple[str, ...] = field(default=(), repr=False)

    def link(self) -> Command:
        """Return the command that links the object files to the library. All object files must exist before this call.

        This method reads the names of the `extern __shared__` arrays from the object files. The method then writes a
        C++ source that defines these arrays. The returned command compiles and links the C++ source too.
        """
        objects = [str(c.output) for c in self.compile]
        names = sorted({n for c in self.compile for n in undefined_thread_locals(c.output)})
        extra = [str(_write_dynamic_shared(self.out, names))] if names else []
        kind = ["-pie"] if self.program else ["-shared"]
        argv = [self.compiler.path, *self.flags, *kind, *objects, *extra, "-o", str(self.out)]
        return Command((*argv, "-Wl,-z,defs", "-Wl,-z,noexecstack", "-lm", "-ldl", "-lpthread", "-lrt"), self.out)


@functools.cache
def _identify(path: str) -> Compiler:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False)
    except OSError as error:
        raise ToolchainError(f"{path} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise ToolchainError(f"{path} does not work as a compiler: {path} --version exits with {done.returncode}")
    return Compiler(path, done.stdout.splitlines()[0] if done.stdout else path)


def find_compiler(checked: bool = False, path: str | None = None) -> Compiler:
    """Find the C++ compiler: `path`, else $SIMT_CXX, else the first of g++, c++ and clang++ that exists.

    `checked`: whether the compiler must support checked memory accesses, which clang does not.
    `path`: the path or name of the compiler, or None.

    :raises ToolchainError: no compiler is found or works, or `checked` is True and only clang is found
    """
    asked = path or os.environ.get("SIMT_CXX")
    for name in [asked] if asked else ["g++", "c++", "clang++"]:
        found = shutil.which(name)
        if not found:
            continue
        compiler = _identify(found)
        if not (checked and compiler.is_clang):
            return compiler
        if asked:
            raise ToolchainError(f"{asked} is clang; the checked build needs g++ (clang splits vector accesses)")
    raise ToolchainError(f"no C++ compiler: looked for {asked or 'g++, c++, clang++'}; install g++ or set SIMT_CXX")


@functools.cache
def machine_flags() -> tuple[str, ...]:
    """Return the compiler flags for half-precision conversion and fused multiply-add, if this CPU has these
    instructions.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        words = Path("/proc/cpuinfo").read_text("ascii", "replace").split("flags", 2)[1].split("\n", 1)[0].split()
    except (OSError, IndexError):
        return ()
    return tuple(f"-m{f}" for f in ("f16c", "fma") if f in words)


def base_flags(compiler: Compiler, warp_size: int, checked: bool, native: bool = True) -> tuple[str, ...]:
    """Return the compiler flags that the simulator's own C++ source and all CUDA sources have in common.

    `native`: whether to use this CPU's instructions for half precision and fused multiply-add.
    """
    if warp_size not in (32, 64):
        raise ValueError(f"warp_size is 32 or 64, not {warp_size}")
    defines = (f"-DSIMT_WARP_SIZE={warp_size}", f"-DSIMT_CHECKED={int(checked)}")
    unique = () if compiler.is_clang else ("-fno-gnu-unique",)
    return (*_COMMON, *unique, *(machine_flags() if native else ()), *defines, f"-I{INCLUDE}")


def kernel_flags(
    compiler: Compiler, warp_size: int, checked: bool, native: bool = True,
    include: Iterable[str | os.PathLike[str]] = (), defines: Mapping[str, object] | None = None,
    flags: Iterable[str] = (),
) -> tuple[str, ...]:  # fmt: skip
    """Return all compiler flags for a CUDA source. The parameters have the same meaning as in `build`.

    The flags in `flags` come last, so that they override other flags.
    """
    macros = {"PAV2_WARP_SIZE": warp_size, **(defines or {})}
    words = [f"-D{k}" if v is None else f"-D{k}={v}" for k, v in macros.items()]
    words += [f"-I{os.fspath(p)}" for p in include]
    kind = () if compiler.is_clang else ("-fno-extern-tls-init", "-fno-ipa-icf")
    return (
        *base_flags(compiler, warp_size, checked, native), *_DEBUG, *_STACK, *(_CHECKED if checked else _FAST), *kind,
        "-include", "cuda_runtime.h", *words, *flags, "-x", "c++",
    )  # fmt: skip


def runtime_command(compiler: Compiler, out: Path, warp_size: int, checked: bool, native: bool = True,
                    flags: Sequence[str] = ()) -> Command:  # fmt: skip
    """Return the command that compiles the simulator's own C++ source, RUNTIME_SOURCE, to the object file `out`.

    `native`: whether to use this CPU's instructions for half precision and fused multiply-add.
    `flags`: further compiler flags.
    """
    words = (*base_flags(compiler, warp_size, checked, native), "-O2", *flags)
    return Command((compiler.path, *words, "-c", str(RUNTIME_SOURCE), "-o", str(out)), out)


def undefined_thread_locals(path: Path) -> list[str]:
    """Return the names of the thread-local variables that an object file uses but does not define, in alphabetical
    order.

    These variables are the kernels' `extern __shared__` arrays, because the simulator's headers define `__shared__` as
    `thread_local`.

    `path`: the path of the object file.
    """
    data = path.read_bytes()
    if data[:4] != b"\x7fELF" or data[4] != 2:
        raise ValueError(f"{path} is not a 64-bit ELF object file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [_SECTION.unpack_from(data, table + i * size) for i in range(count)]
    names: set[str] = set()
    for section in sections:
        if section[1] == _SYMTAB:
            names |= _undefined(data, section[4], section[5], sections[section[6]][4])
    return sorted(names)


def _undefined(data: bytes, start: int, size: int, strings: int) -> set[str]:
    found = set()
    for name, info, _other, section, _value, _size in _SYMBOL.iter_unpack(data[start : start + size]):
        if section == 0 and info & 15 == _TLS:
            end = data.index(b"\0", strings + name)
            found.add(data[strings + name : end].decode())
    return found


def _write_dynamic_shared(out: Path, names: Sequence[str]) -> Path:
    """Write a C++ source that defines all `extern __shared__` arrays of a library at the same address, as in CUDA.

    Return the path of the C++ source, which is in the same folder as the library.

    `out`: the path of the library.
    `names`: the names of the arrays.
    """
    lines = [
        "// The memory behind the `extern __shared__` arrays of this library: all begin at the same place.",
        "#include <cstddef>",
        'extern "C" {',
        f"thread_local char simt_dynamic_shared[{DYNAMIC_SHARED_CAPACITY}] __attribute__((aligned(1024)));",
        *(f"extern thread_local char {n}[{DYNAMIC_SHARED_CAPACITY}] "
          '__attribute__((alias("simt_dynamic_shared")));' for n in names),
        "void* simt_dynamic_base(size_t* capacity) {",
        "    *capacity = sizeof simt_dynamic_shared;",
        "    return simt_dynamic_shared;",
        "}",
        "}",
    ]  # fmt: skip
    path = out.with_name(out.name + ".shared.cpp")
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    os.replace(temporary, path)
    return path
