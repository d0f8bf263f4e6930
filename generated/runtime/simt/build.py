"""Compiles CUDA sources into a library for the CPU. The name of each compiled file has a hash of all its inputs.

A compiled file in the cache folder is used again as long as its inputs have not changed.
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
    """A CUDA source can't be compiled. The message has the reason, and the compiler's command line if it ran."""

    def __init__(self, command: Command | None, output: str) -> None:
        self.command = command
        self.output = explain(output.strip())
        repeat = f"\nto repeat: {command}" if command else ""
        super().__init__(f"{self.output}{repeat}")


def default_cache() -> Path:
    """The default folder for compiled files: $SIMT_CACHE if set, else the folder `simt` in the user's cache folder.

    :raises ToolchainError: this user has no home folder
    """
    return platform_cache("SIMT_CACHE", "simt")


def build(
    sources: Iterable[StrPath], *, warp_size: int = 64, checked: bool = False, include: Iterable[StrPath] = (),
    defines: Mapping[str, object] | None = None, flags: Iterable[str] = (), cache_dir: StrPath | None = None,
    compiler: str | None = None, native: bool = True, runtime_flags: Iterable[str] = (), jobs: int = 2,
) -> Program:  # fmt: skip
    """Compile CUDA sources into a library for the CPU, and load the library.

    :param sources: `.cu` files, which are linked into one library
    :param warp_size: 32 or 64. Kernels see this number as `warpSize` and as the macro PAV2_WARP_SIZE.
    :param checked: whether to check and count every memory access. Kernels then run many times slower.
    :param include: folders in which the compiler looks for headers
    :param defines: the macros to define: a dict from names to values. None defines a macro without a value.
    :param flags: further compiler flags for the CUDA sources
    :param cache_dir: the folder for compiled files. The default is `default_cache()`.
    :param compiler: the C++ compiler. The default is $SIMT_CXX if it is set, else the first found of g++, c++, clang++.
    :param native: whether to use this CPU's instructions for half precision and fused multiply-add, if it has them
    :param runtime_flags: further compiler flags for the simulator's own source, such as -DSIMT_UCONTEXT
    :param jobs: how many compilers may run at the same time
    :raises CompileError: a source does not compile, or it can't be read
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
    """Return the commands that `build` would run, without running them. Another build system can then run the commands.

    The parameters that are not listed here are those of `build`. The name of each object file contains a hash of all
    its inputs, so an existing object file need not be compiled again. If a source or its headers contain launches
    `kernel<<<…>>>`, this function writes the rewritten source to the cache folder, because the commands compile it. The
    function writes no other files.

    :param out: the path of the library. None means a file in the cache folder, with a hash of all inputs in its name.
    :param program: whether to link an executable program instead of a library
    :raises CompileError: a source can't be read, or its launches can't be rewritten
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
    """Compile and link as the plan says, and return the path of the library or program.

    A command whose output file is up to date is not run again.

    :param jobs: how many commands may run at the same time
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
    """Write the note of a library: the inputs are all files from which its object files were compiled.

    The module `cache` says what a note is. `digests`: the digests of the files that were read so far.
    """
    note(library, sorted({path for made in objects for path in inputs_of(made)}), digests)


def run_command(command: Command, digests: Digests | None = None) -> None:
    """Run one command of a plan. If the command compiles a source, also write the note of the compiled file.

    The module `cache` says what a note is. The command writes to a temporary file, which gets the name of the output
    when it is complete.

    :param digests: the digests of the files that were read so far. The default is an empty collection.
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
    """The paths of a source and of the headers that `_closure` finds in the folders of the including files.

    The list is empty if one of these files can't be read.
    """
    try:
        return [str(path) for path in _closure(source.resolve(), [])]
    except OSError:
        return []


@dataclass(frozen=True)
class _CompileSettings:
    """The settings that all CUDA sources of a library share when they are compiled."""

    tool: Compiler
    words: tuple[str, ...]  # the compiler's flags
    checked: bool
    folders: list[Path]  # the folders that `_closure` searches for headers
    cache: Path
    ours: str  # the digest of the simulator's own files
    hidden: bool  # whether the compiler may find headers in folders that are not in `folders`

    def command(self, source: Path) -> Command:
        """The command that compiles one source to an object file.

        If the source or one of its headers has launches `<<<…>>>`, this method writes the rewritten source to the cache
        folder, and the command compiles that file.
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
        """Rewrite the launches `<<<…>>>` in a source and its headers.

        Returns the text of the rewritten source, and the compiler flags for it. The text is None if there are no
        launches, so that the source file is compiled unchanged.

        `texts`: the texts of the source and its headers by path, as `_closure` returns them.
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
        """The text of a source in which the compiler has carried out `#include` and `#if`, but not expanded macros."""
        argv = (self.tool.path, *self.words, "-E", "-fdirectives-only", str(source))
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", errors="surrogateescape",
                              env=for_compilers())  # fmt: skip
        if done.returncode != 0:
            raise CompileError(Command(argv, source), done.stderr)
        return done.stdout


def _closure(source: Path, folders: list[Path]) -> dict[Path, str]:
    """The texts of a source and of all headers that it includes directly or indirectly, as a dict from paths to texts.

    A header is looked for in the folder of the including file, then in `folders`. Headers that are not found there, and
    the simulator's own headers, are left out. An `#include` counts even if `#if` excludes it.
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
    """Read the text of a regular file.

    :raises OSError: the file can't be read, or it is not a regular file. To read a FIFO, for instance, could block.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file")
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def _own_digest() -> str:
    """The digest of those files of the simulator that every build uses: headers, runtime source and `assemble.py`."""
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
