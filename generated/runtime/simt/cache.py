"""Decides whether a compiled file is up to date. Each compiled file has a *note*: a JSON file that lists its inputs.

The note of `x.o` is `x.o.json`. The note has the digest of `x.o`, and the digest of every file that the compiler read
to make `x.o`. The name `x` contains a hash of everything else that determines the result: the flags, the compiler, and
the environment variables that the compiler reads.
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

#: The programs that g++ and clang++ call (PARTS, names for `-print-prog-name`), and the files that nvcc calls or reads.
PARTS = ("cc1plus", "as", "ld")
NVCC_PARTS = ("cudafe++", "ptxas", "fatbinary", "nvlink", "nvcc.profile", "../nvvm/bin/cicc")


class CacheError(ToolchainError):
    """The cache folder for compiled files can't be used. The message says why, and what would work."""


def platform_cache(variable: str, name: str) -> Path:
    """A cache folder: the value of the environment variable `variable`, else `name` in the user's cache folder.

    :raises CacheError: this user has no home folder
    """
    if os.environ.get(variable):
        return Path(os.path.abspath(os.environ[variable]))
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name
    except RuntimeError:
        raise CacheError(f"this user has no home folder to keep compiled files in; set {variable}") from None


def own_folder(folder: Path) -> Path:
    """Create a folder that only this user can write to, or check that no other user can write to an existing folder.

    The check matters because libraries from the folder are loaded and executed.

    :raises CacheError: the folder belongs to another user, others can write to it, or it can't be created
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
            f"{folder}: its files are executed, but other users can write there; remove it, or make it private: "
            "chmod 700"
        )
    return folder


class Digests:
    """Computes and remembers the digests of files. Each file is read only once.

    If a file changes during a build, the digest remains that of the old content, and the next build notices the change.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, path: str | os.PathLike[str]) -> str:
        """The sha256 of a regular file in hexadecimal, or an empty string if the file can't be read."""
        name = os.fspath(path)
        if name not in self._known:
            self._known[name] = digest(name)
        return self._known[name]


def digest(path: str | os.PathLike[str]) -> str:
    """The sha256 of a regular file in hexadecimal, or an empty string if the path is not a readable regular file.

    The function never blocks, not even on a FIFO.
    """
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
    """The path of the note that belongs to a compiled file."""
    return output.with_name(output.name + ".json")


def note(output: Path, inputs: Iterable[str], digests: Digests) -> None:
    """Write the note of the compiled file `output`, with the digests of the files from which it was compiled.

    `digests` should have read these inputs before the compiler did. A change during the compilation is then noticed.
    """
    paths = [os.path.abspath(name) for name in inputs]
    found = {os.fsencode(path).decode("utf-8", "surrogateescape"): digests.of(path) for path in paths}
    write_note(note_of(output), {"sha256": digest(output), "inputs": found})


def read_note(output: Path) -> Mapping[str, object]:
    """The content of the note of a compiled file. The result is empty if the note is missing or can't be read."""
    return read_json(note_of(output))


def inputs_of(output: Path) -> dict[str, str]:
    """The recorded digest of each file from which `output` was compiled, by path.

    The result is empty if `output` has no note.
    """
    inputs = read_note(output).get("inputs")
    if not isinstance(inputs, dict):
        return {}
    return {os.fsdecode(path.encode("utf-8", "surrogateescape")): known for path, known in inputs.items()}


def is_current(output: Path, digests: Digests) -> bool:
    """Whether a compiled file is up to date: neither the file nor its inputs have changed since it was compiled."""
    noted = read_note(output)
    inputs = inputs_of(output)
    if not inputs or any(digests.of(path) != known for path, known in inputs.items()):
        return False
    return noted.get("sha256") == digest(output)


def read_json(path: Path) -> Mapping[str, object]:
    """The content of a small JSON file that this package wrote.

    The result is empty if the path is not a regular file with a JSON object. The function never blocks, not even on a
    FIFO.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            found = json.loads(file.read()) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(path: Path, content: Mapping[str, object]) -> None:
    """Write `content` to a small JSON file, and replace an existing file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(content, file)
    os.replace(temporary, path)


def read_dependencies(path: Path) -> list[str]:
    """The files that a compiler has read, parsed from the make rule that `-MD` writes: `target: file file \\`.

    path: the file with the rule. The list is empty if the file does not exist.
    """
    if not path.exists():
        return []
    text = os.fsdecode(path.read_bytes()).replace("\\\n", " ")
    _, _, rule = text.partition(": ")
    words = re.findall(r"(?:\\.|[^\s\\])+", rule.partition("\n")[0])
    return [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words]


def environment() -> dict[str, str]:
    """The names and values of those environment variables in `VARIABLES` that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def for_compilers() -> dict[str, str]:
    """The environment variables for running a compiler: this process's variables, with English messages in ASCII."""
    return {**os.environ, "LC_ALL": "C"}


def identity(compiler: str) -> str:
    """A digest that changes with the compiler's program, the programs that it calls, or its environment variables."""
    parts = [(path, _digest_of_program(path, *_state(path))) for path in _programs(os.path.realpath(compiler))]
    return hashlib.sha256(repr((compiler, parts, environment())).encode("utf-8", "surrogateescape")).hexdigest()


def _programs(compiler: str) -> Iterator[str]:
    yield compiler
    if Path(compiler).name.startswith("nvcc"):
        here = nvcc_folder(compiler)
        yield from (os.path.realpath(os.path.join(here, part)) for part in NVCC_PARTS)
        yield from _programs_of(shutil.which(os.environ.get("NVCC_CCBIN", "g++")) or "")
    else:
        yield from _programs_of(compiler)


@functools.cache
def _programs_of(driver: str) -> tuple[str, ...]:
    """The paths of a compiler driver (g++ or clang++) and of the programs that the driver says it calls."""
    if not driver:
        return ()
    found = [driver]
    for part in PARTS:
        done = _asked(driver, f"-print-prog-name={part}")
        found += [path for path in (shutil.which(done.strip()),) if path]
    return tuple(map(os.path.realpath, found))


@functools.cache
def nvcc_folder(compiler: str) -> str:
    """The folder that contains nvcc's tools, such as ptxas.

    The folder is read from nvcc's output, because the nvcc on PATH may be a script that calls an nvcc elsewhere.
    """
    said = re.search(r"^#\$ _HERE_=(.+)$", _asked(compiler, "--dryrun", "-x", "cu", "-c", os.devnull), re.MULTILINE)
    return said[1] if said else os.path.dirname(compiler)


def _asked(*command: str) -> str:
    """The output of a command (stdout, then stderr), or an empty string if the command can't be run or fails."""
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
