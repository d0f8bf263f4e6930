"""Decides whether a compiled file is up to date, from a note that lists the files it was compiled from.

The note of `x.o` is `x.o.json`, in the same folder. It has the digest of `x.o`, and the digest of every file that the
compiler read to make it (the compiler writes that list). The name `x` contains a hash of everything else that the
result depends on: the flags, the compiler, and the environment variables that the compiler reads.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .toolchain import ToolchainError

#: The environment variables that change what g++, clang++, nvcc and their linkers do.
VARIABLES = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("SOURCE_DATE_EPOCH", "CCC_OVERRIDE_OPTIONS", "CCC_ADD_ARGS", "CLANG_CONFIG_FILE_SYSTEM_DIR"),
    *("CLANG_CONFIG_FILE_USER_DIR", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CICC_PATH"),
    *("NVVMIR_LIBRARY_DIR", "LD_RUN_PATH", "LDEMULATION"),
)

#: The programs that g++ or clang++ calls, as `-print-prog-name` names them, and the files that nvcc calls or reads.
PARTS = ("cc1plus", "as", "ld")
NVCC_PARTS = ("cudafe++", "ptxas", "fatbinary", "nvlink", "nvcc.profile", "../nvvm/bin/cicc")


class CacheError(ToolchainError):
    """The folder of compiled files can't be used. The message says why, and what would work."""


def platform_cache(variable: str, name: str) -> Path:
    """The folder that an environment variable names, else the folder `name` in the user's cache folder.

    :raises CacheError: this user has no home folder
    """
    if os.environ.get(variable):
        return Path(os.path.abspath(os.environ[variable]))
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name
    except RuntimeError:
        raise CacheError(f"this user has no home folder to keep compiled files in; set {variable}") from None


def own_folder(folder: Path) -> Path:
    """Make a folder that only this user can write to, or check an existing one. Its files will be executed.

    :raises CacheError: it belongs to another user, others can write to it, or it can't be made
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = os.stat(folder)
    except OSError as error:
        raise CacheError(f"{folder}: the cache can't be made there ({error.strerror})") from None
    if state.st_uid not in (os.geteuid(), 0):
        raise CacheError(
            f"{folder}: compiled files are kept there, but it belongs to user {state.st_uid}; use a folder of yours"
        )
    if state.st_mode & 0o022:
        raise CacheError(
            f"{folder}: others can write there, and what lies there is executed; remove it, or make it yours: chmod 700"
        )
    return folder


class Digests:
    """The digests of files. Each file is read once, at the first request.

    If a file changes during a build, its digest is that of the old content. The next build notices the change."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, path: str | os.PathLike[str]) -> str:
        """The sha256 of a regular file; an empty string if it can't be read."""
        name = os.fspath(path)
        if name not in self._known:
            self._known[name] = digest(name)
        return self._known[name]


def digest(path: str | os.PathLike[str]) -> str:
    """The sha256 of a regular file. Empty for anything else, and if the file can't be read. Never waits on a FIFO."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return ""
        found = hashlib.sha256()
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def note_of(output: Path) -> Path:
    """The path of a compiled file's note."""
    return output.with_name(output.name + ".json")


def note(output: Path, inputs: Iterable[str], digests: Digests) -> None:
    """Record the sources of `output`. `digests` should have read them before the compiler did."""
    paths = [os.path.abspath(name) for name in inputs]
    found = {os.fsencode(path).decode("utf-8", "surrogateescape"): digests.of(path) for path in paths}
    write_note(note_of(output), {"sha256": digest(output), "inputs": found})


def read_note(output: Path) -> Mapping[str, object]:
    """The content of a compiled file's note. Empty if the note is missing or can't be read."""
    return read_json(note_of(output))


def inputs_of(output: Path) -> dict[str, str]:
    """The digest of each file that `output` was made from, by path. Empty if no note tells them."""
    inputs = read_note(output).get("inputs")
    if not isinstance(inputs, dict):
        return {}
    return {os.fsdecode(path.encode("utf-8", "surrogateescape")): known for path, known in inputs.items()}


def is_current(output: Path, digests: Digests) -> bool:
    """Whether a compiled file exists unchanged, and a new build would give the same file."""
    noted = read_note(output)
    inputs = inputs_of(output)
    if not inputs or any(digests.of(path) != known for path, known in inputs.items()):
        return False
    return noted.get("sha256") == digest(output)


def read_json(path: Path) -> Mapping[str, object]:
    """The content of a small JSON file that this package wrote. Empty for any other file. Never waits on a FIFO."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            found = json.loads(file.read()) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(path: Path, content: Mapping[str, object]) -> None:
    """Write a small JSON file atomically. An existing file is replaced."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(content, file)
    os.replace(temporary, path)


def read_dependencies(path: Path) -> list[str]:
    """The files that a compiler has read, from the make rule that it wrote with `-MD`: `target: file file \\`.

    Empty if the compiler wrote no rule.
    """
    if not path.exists():
        return []
    text = os.fsdecode(path.read_bytes()).replace("\\\n", " ")
    _, _, rule = text.partition(": ")
    words = re.findall(r"(?:\\.|[^\s\\])+", rule.partition("\n")[0])
    return [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words]


def environment() -> dict[str, str]:
    """The environment variables of `VARIABLES` that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def for_compilers() -> dict[str, str]:
    """The environment in which a compiler runs: this process's, with messages in English and in ASCII."""
    return {**os.environ, "LC_ALL": "C"}


def identity(compiler: str) -> str:
    """The digest of a compiler: of its program, the programs that it calls, and the variables that it reads."""
    parts = [(path, _digest_of_program(path, *_state(path))) for path in _programs(os.path.realpath(compiler))]
    return hashlib.sha256(repr((compiler, parts, environment())).encode("utf-8", "surrogateescape")).hexdigest()


def _programs(compiler: str) -> Iterator[str]:
    yield compiler
    if Path(compiler).name.startswith("nvcc"):
        here = _nvcc_folder(compiler)
        yield from (os.path.realpath(os.path.join(here, part)) for part in NVCC_PARTS)
        yield from _programs_of(shutil.which(os.environ.get("NVCC_CCBIN", "g++")) or "")
    else:
        yield from _programs_of(compiler)


@functools.cache
def _programs_of(driver: str) -> tuple[str, ...]:
    """The paths of g++ or clang++ and of the programs that it calls, as far as it tells them."""
    if not driver:
        return ()
    found = [driver]
    for part in PARTS:
        done = _asked(driver, f"-print-prog-name={part}")
        found += [path for path in (shutil.which(done.strip()),) if path]
    return tuple(map(os.path.realpath, found))


@functools.cache
def _nvcc_folder(compiler: str) -> str:
    """The folder of nvcc's own parts. nvcc is asked, because the nvcc on PATH may be a script that calls another."""
    said = re.search(r"^#\$ _HERE_=(.+)$", _asked(compiler, "--dryrun", "-x", "cu", "-c", os.devnull), re.MULTILINE)
    return said[1] if said else os.path.dirname(compiler)


def _asked(*command: str) -> str:
    """The output of a compiler's command. Empty if the command can't be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", env=for_compilers())
    except OSError:
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def _state(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


@functools.cache
def _digest_of_program(path: str, size: int, changed: int) -> str:
    return digest(path)
