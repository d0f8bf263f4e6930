"""Compiles CUDA sources into a library for the CPU, and keeps the compiled files in a cache folder.

The function `build` reuses a compiled file if the sources, headers, compiler and compiler flags are unchanged.
"""

from __future__ import annotations

import concurrent.futures
import errno
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .cache import (
    Digests,
    digest,
    for_compilers,
    identity,
    inputs_of,
    is_current,
    note,
    own_folder,
    platform_cache,
    read_dependencies,
)
from .diagnosis import explain
from .program import Program, attach
from .rewrite import RewriteError, rewrite_launches, rewrite_unfolded
from .toolchain import (
    ASSEMBLE,
    INCLUDE,
    Command,
    Compiler,
    Plan,
    base_flags,
    find_compiler,
    kernel_flags,
    runtime_command,
)

StrPath = str | os.PathLike[str]

_INCLUDE_LINE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
# `#include MACRO`: a search of the source text can't find the file's name.
_COMPUTED_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]+[^<"\s/]', re.MULTILINE)
# Environment variables that add folders to the compiler's header search. `_closure` does not search these folders.
_HEADER_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")


class CompileError(Exception):
    """A CUDA source cannot be compiled.

    The exception's message gives the reason. If a compiler ran, the message also gives the compiler's command line.
    """

    def __init__(self, command: Command | None, output: str) -> None:
        self.command = command
        self.output = explain(output.strip())
        repeat = f"\nto repeat: {command}" if command else ""
        super().__init__(f"{self.output}{repeat}")


def default_cache() -> Path:
    """Return the default folder for compiled files: $SIMT_CACHE if set, else the folder `simt` in the user's cache
    folder.

    The user's cache folder is $XDG_CACHE_HOME if set, else the folder `.cache` in the user's home folder.

    :raises ToolchainError: neither variable is set, and the user has no home folder
    """
    return platform_cache("SIMT_CACHE", "simt")


def build(
    sources: Iterable[StrPath], *, warp_size: int = 64, checked: bool = False, include: Iterable[StrPath] = (),
    defines: Mapping[str, object] | None = None, flags: Iterable[str] = (), cache_dir: StrPath | None = None,
    compiler: str | None = None, native: bool = True, runtime_flags: Iterable[str] = (), jobs: int = 2,
) -> Program:  # fmt: skip
    """Compile CUDA sources into a library for the CPU, and load the library.

    :param sources: the paths of `.cu` files, which are linked into one library
    :param warp_size: the number of lanes in a warp, 32 or 64; kernels see it as `warpSize` and as the macro
        PAV2_WARP_SIZE
    :param checked: whether to check and count every memory access, which makes kernels many times slower
    :param include: the folders in which the compiler looks for headers
    :param defines: the macros to define, as a dict from names to values; None defines a macro without a value
    :param flags: further compiler flags for the CUDA sources
    :param cache_dir: the folder for compiled files; the default is the result of `default_cache()`
    :param compiler: the C++ compiler; the default is $SIMT_CXX if set, else the first of g++, c++ and clang++ that
        exists
    :param native: whether to use this CPU's instructions for half precision and fused multiply-add, if the CPU has them
    :param runtime_flags: further compiler flags for the simulator's own C++ source, such as -DSIMT_UCONTEXT
    :param jobs: the largest number of compiler processes that run at the same time
    :raises CompileError: a source cannot be read or does not compile
    :raises ToolchainError: no compiler is found, or the cache folder is not safe to use
    """
    plan = compile_commands(
        sources, None, warp_size=warp_size, checked=checked, include=include, defines=defines, flags=flags,
        cache_dir=cache_dir, compiler=compiler, native=native, runtime_flags=runtime_flags,
    )  # fmt: skip
    return attach(run_plan(plan, jobs))


def compile_commands(
    sources: Iterable[StrPath], out: StrPath | None, *, warp_size: int = 64, checked: bool = False,
    include: Iterable[StrPath] = (), defines: Mapping[str, object] | None = None, flags: Iterable[str] = (),
    cache_dir: StrPath | None = None, compiler: str | None = None, native: bool = True,
    runtime_flags: Iterable[str] = (), program: bool = False,
) -> Plan:  # fmt: skip
    """Return the commands that `build` would run, so that another build system can run the commands.

    The parameters without an entry below have the same meaning as in `build`. The name of each object file contains a
    hash of its inputs. An object file that exists already need not be compiled again. If a source or one of its headers
    contains kernel launches `kernel<<<…>>>`, this function writes a rewritten source to the cache folder. The returned
    commands compile the rewritten source. The function writes no other files.

    :param out: the path of the library; None means a file in the cache folder, with a hash of all inputs in its name
    :param program: whether to link an executable program instead of a library
    :raises CompileError: a source cannot be read or preprocessed, or a kernel launch in a source cannot be parsed
    :raises ToolchainError: no compiler is found, or the cache folder is not safe to use
    """
    cache = Path(cache_dir) if cache_dir else default_cache()
    own_folder(cache)
    tool = find_compiler(checked, compiler)
    folders, flags = [Path(p).resolve() for p in include], list(flags)
    words = kernel_flags(tool, warp_size, checked, native, folders, defines, flags)
    ours = _own_digest()
    hidden = bool(flags) or any(os.environ.get(name) for name in _HEADER_VARIABLES)
    settings = _CompileSettings(tool, words, checked, folders, cache, ours, hidden)
    commands = [settings.command(Path(s).resolve()) for s in sources]
    runtime = runtime_command(tool, Path("runtime.o"), warp_size, checked, native, list(runtime_flags))
    # `ours` stands for the content of INCLUDE. Packages with the same runtime share an object, wherever they lie.
    settled = [word.replace(str(INCLUDE), "") for word in runtime.argv]
    object_path = cache / f"runtime-{_digest(tool.version, identity(tool.path), settled, ours)}.o"
    commands.insert(0, Command((*runtime.argv[:-1], str(object_path)), object_path))
    suffix = "" if program else ".so"
    name = f"simt-{_digest([c.output.name for c in commands], program)}{suffix}"
    target = Path(out) if out is not None else cache / name
    base = base_flags(tool, warp_size, checked, native)
    return Plan(tuple(commands), target, tool, warp_size, checked, program, base)


def run_plan(plan: Plan, jobs: int = 2) -> Path:
    """Run the compile commands and the link command of `plan`, and return the path of the library or program.

    A compile command is skipped if its object file is up to date.

    :param jobs: the largest number of compile commands that run at the same time
    :raises CompileError: a command failed
    """
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    digests = Digests()
    kept = plan.out.parent == plan.compile[0].output.parent  # the library is in the cache: write its note there
    if kept and is_current(plan.out, digests):
        return plan.out
    todo = {c.output: c for c in plan.compile if not is_current(c.output, digests)}
    with concurrent.futures.ThreadPoolExecutor(max(1, jobs)) as pool:
        list(pool.map(lambda command: run_command(command, digests), todo.values()))
    run_command(plan.link())
    if kept:
        note_library(plan.out, [c.output for c in plan.compile], digests)
    return plan.out


def note_library(library: Path, objects: Iterable[Path], digests: Digests) -> None:
    """Write a JSON file beside a library, with the sha256 digests of the library and of all files it was compiled from.

    `objects`: the library's object files, each with its own JSON file of digests.
    `digests`: the digests of the files that this build has read so far.
    """
    note(library, sorted({path for made in objects for path in inputs_of(made)}), digests)


def run_command(command: Command, digests: Digests | None = None) -> None:
    """Run one command of a `Plan`.

    If the command compiles a source, also write a JSON file beside the output. The JSON file has the sha256 digests of
    the output and of the files that the compiler read. The command writes to a temporary file, which gets its final
    name only when the file is complete.

    :param digests: the digests of the files that this build has read so far; the default is an empty collection
    :raises CompileError: the command failed
    """
    digests = Digests() if digests is None else digests
    compiles = "-c" in command.argv
    inputs = _included(Path(command.argv[command.argv.index("-c") + 1])) if compiles else []
    for path in inputs:
        digests.of(path)
    with tempfile.TemporaryDirectory(dir=command.output.parent, prefix=".making-") as folder:
        made, listed = Path(folder) / command.output.name, Path(folder) / "inputs.d"
        argv = [str(made) if word == str(command.output) else word for word in command.argv]
        done = _run([*argv, "-MD", "-MF", str(listed)] if compiles else argv)
        if compiles and done.returncode == 0:
            inputs = read_dependencies(listed) or inputs
        elif compiles:
            done = _run(argv)  # perhaps the compiler refused only -MD and -MF
        if done.returncode != 0:
            raise CompileError(command, done.stderr + done.stdout)
        os.replace(made, command.output)
    if compiles:
        note(command.output, inputs, digests)


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, encoding="utf-8", errors="replace", env=for_compilers())


def _included(source: Path) -> list[str]:
    """Return the paths of a source and of the headers that `_closure` finds without further header folders.

    The result is an empty list if the source or one of the headers cannot be read.
    """
    try:
        return [str(path) for path in _closure(source.resolve(), [])]
    except OSError:
        return []


@dataclass(frozen=True)
class _CompileSettings:
    """The settings with which all CUDA sources of a library are compiled."""

    tool: Compiler
    words: tuple[str, ...]  # the compiler's flags
    checked: bool
    folders: list[Path]  # the folders that `_closure` searches for headers
    cache: Path
    ours: str  # the digest of the simulator's own files
    hidden: bool  # whether the compiler may find headers in folders that are not in `folders`

    def command(self, source: Path) -> Command:
        """Return the command that compiles `source` to an object file.

        If the source or one of its headers contains kernel launches `<<<…>>>`, this method writes a rewritten source to
        the cache folder. The command then compiles the rewritten source.
        """
        try:
            texts = _closure(source, self.folders)
        except OSError as error:
            raise CompileError(None, f"{source}: {error.strerror}") from None
        rewritten, words = self._rewritten(source, texts)
        project = [(str(p), t) for p, t in texts.items()]
        compiler = (self.tool.version, identity(self.tool.path))
        name = f"{source.stem}-{_digest(compiler, self.words, self.checked, self.ours, project, rewritten)}"
        compiled = source
        if rewritten is not None:
            compiled = self.cache / f"{name}.cu"
            _write(compiled, rewritten)
        out = self.cache / f"{name}.o"
        front = (sys.executable, str(ASSEMBLE)) if self.checked else ()
        return Command((*front, self.tool.path, *words, "-c", str(compiled), "-o", str(out)), out)

    def _rewritten(self, source: Path, texts: Mapping[Path, str]) -> tuple[str | None, tuple[str, ...]]:
        """Rewrite the kernel launches `<<<…>>>` in a source and its headers.

        Return the text of the rewritten source, and the compiler flags for the rewritten source. The text is None if
        the source can be compiled unchanged.

        `texts`: a dict from the paths of the source and its headers to the texts of these files.
        """
        launches = any("<<<" in text for text in texts.values())
        unseen = self.hidden or any(_COMPUTED_INCLUDE.search(text) for text in texts.values())
        if not launches and not unseen:
            return None, self.words
        try:
            if self.tool.is_clang:  # clang can't compile the text of `_unfolded`: launches in headers are not rewritten
                words = (f"-iquote{source.parent}", *self.words)
                return (rewrite_launches(texts[source], str(source)), words) if launches else (None, self.words)
            unfolded = self._unfolded(source)
            rewritten = rewrite_unfolded(unfolded, str(INCLUDE) + os.sep)
        except RewriteError as error:
            raise CompileError(None, str(error)) from None
        if rewritten == unfolded:
            return None, self.words
        at = self.words.index("-include")
        return rewritten, (*self.words[:at], *self.words[at + 2 :], "-fpreprocessed", "-fdirectives-only")

    def _unfolded(self, source: Path) -> str:
        """Return the text of a source after preprocessing with the compiler's option -fdirectives-only.

        The compiler carries out `#include` and `#if`, but does not expand macros.
        """
        argv = (self.tool.path, *self.words, "-E", "-fdirectives-only", str(source))
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", errors="surrogateescape",
                              env=for_compilers())  # fmt: skip
        if done.returncode != 0:
            raise CompileError(Command(argv, source), done.stderr)
        return done.stdout


def _closure(source: Path, folders: list[Path]) -> dict[Path, str]:
    """Return a dict from paths to texts, for a source and all headers that the source includes directly or indirectly.

    Each header is looked for in the folder of the including file, then in `folders`. The dict leaves out headers
    outside the searched folders, and the simulator's own headers. The dict contains a header even if an `#if` disables
    its `#include`.
    """
    texts: dict[Path, str] = {}
    queue = [source]
    while queue:
        path = queue.pop()
        if path in texts:
            continue
        texts[path] = _read(path)
        for name in _INCLUDE_LINE.findall(texts[path]):
            found = next((p for f in (path.parent, *folders) if (p := (f / name)).is_file()), None)
            if found and INCLUDE not in found.resolve().parents:
                queue.append(found.resolve())
    return texts


def _read(path: Path) -> str:
    """Return the text of a regular file.

    :raises OSError: the file cannot be read, or is not a regular file (reading a FIFO could block)
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file")
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def _own_digest() -> str:
    """Return a digest of the simulator's own files that every build uses: headers, C++ source and `assemble.py`."""
    files = [ASSEMBLE, *sorted(p for p in INCLUDE.rglob("*") if p.is_file())]
    return _digest([(p.name, digest(p)) for p in files])


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _write(path: Path, text: str) -> None:
    content = text.encode("utf-8", "surrogateescape")
    if digest(path) == hashlib.sha256(content).hexdigest():
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)
