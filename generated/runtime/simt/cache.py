"""Decides whether a compiled file is up to date.

Each compiled file has a note, that is, a JSON file that lists the inputs of the compiled file. For the object file
`x.o`, the note is `x.o.json`. The note contains the sha256 digest of `x.o`, and the digest of every file that the
compiler read to make `x.o`. The name `x` contains a hash of the compiler, the compiler flags, and the environment
variables that the compiler reads.
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

#: The programs that g++ and clang++ call, by the names that `-print-prog-name` takes. NVCC_PARTS are the programs that
#: nvcc calls and the files that it reads, as paths relative to `nvcc_folder`.
PARTS = ("cc1plus", "as", "ld")
NVCC_PARTS = ("cudafe++", "ptxas", "fatbinary", "nvlink", "nvcc.profile", "../nvvm/bin/cicc")


class CacheError(ToolchainError):
    """The folder for compiled files cannot be used. The exception's message gives the reason."""


def platform_cache(variable: str, name: str) -> Path:
    """Return the path of a cache folder: the environment variable `variable` if set, else `name` in the user's cache
    folder.

    The user's cache folder is $XDG_CACHE_HOME if set, else the folder `.cache` in the user's home folder.

    :raises CacheError: neither variable is set, and the user has no home folder
    """
    if os.environ.get(variable):
        return Path(os.path.abspath(os.environ[variable]))
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name
    except RuntimeError:
        raise CacheError(f"this user has no home folder to keep compiled files in; set {variable}") from None


def own_folder(folder: Path) -> Path:
    """Create a folder to which only this user can write, and return the folder.

    If the folder exists, the function checks that no other user can write to the folder. The check is needed because
    this process executes libraries from the folder. An existing folder may belong to this user or to root.

    :raises CacheError: the folder belongs to another user, other users can write to it, or it cannot be created
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
    """Computes and remembers the sha256 digests of files, so that a build reads each file only once.

    If a file changes during a build, the remembered digest is still that of the old content. The next build then
    detects the change and compiles again.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, path: str | os.PathLike[str]) -> str:
        """Return the sha256 digest of a file in hexadecimal.

        The result is an empty string if the file cannot be read or is not a regular file.
        """
        name = os.fspath(path)
        if name not in self._known:
            self._known[name] = digest(name)
        return self._known[name]


def digest(path: str | os.PathLike[str]) -> str:
    """Return the sha256 digest of a file in hexadecimal.

    The result is an empty string if the file cannot be read or is not a regular file. The function never blocks, even
    if the path is a FIFO.
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
    """Return the path of the JSON file that lists the inputs of the compiled file `output`: `x.o.json` for `x.o`."""
    return output.with_name(output.name + ".json")


def note(output: Path, inputs: Iterable[str], digests: Digests) -> None:
    """Write a JSON file with the sha256 digests of the compiled file `output` and of its inputs.

    `inputs`: the paths of the files from which `output` was compiled.
    `digests`: the sha256 digests of the inputs, computed before the compiler runs. With digests from before the
    compilation, the next build detects an input that changed during the compilation.
    """
    paths = [os.path.abspath(name) for name in inputs]
    found = {os.fsencode(path).decode("utf-8", "surrogateescape"): digests.of(path) for path in paths}
    write_note(note_of(output), {"sha256": digest(output), "inputs": found})


def read_note(output: Path) -> Mapping[str, object]:
    """Return the content of the JSON file that lists the inputs of the compiled file `output`.

    The result is an empty dict if the JSON file is missing or cannot be read.
    """
    return read_json(note_of(output))


def inputs_of(output: Path) -> dict[str, str]:
    """Return the inputs of the compiled file `output`, as a dict from the path of each input to its sha256 digest.

    The function reads the JSON file that `note` wrote for `output`. The dict is empty if the JSON file does not exist.
    """
    inputs = read_note(output).get("inputs")
    if not isinstance(inputs, dict):
        return {}
    return {os.fsdecode(path.encode("utf-8", "surrogateescape")): known for path, known in inputs.items()}


def is_current(output: Path, digests: Digests) -> bool:
    """Return whether a compiled file is up to date.

    A compiled file is up to date if neither the file nor any of its inputs has changed since the compilation.

    `digests`: the digests of the files that this build has read so far.
    """
    noted = read_note(output)
    inputs = inputs_of(output)
    if not inputs or any(digests.of(path) != known for path, known in inputs.items()):
        return False
    return noted.get("sha256") == digest(output)


def read_json(path: Path) -> Mapping[str, object]:
    """Return the JSON object in the file at `path`, as a dict.

    The dict is empty if the path is not a regular file, or if the file contains no valid JSON object. The function
    never blocks, even if the path is a FIFO.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            found = json.loads(file.read()) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(path: Path, content: Mapping[str, object]) -> None:
    """Write `content` as JSON to the file `path`.

    Other processes see either the old or the new content of the file, never a part of the new content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(content, file)
    os.replace(temporary, path)


def read_dependencies(path: Path) -> list[str]:
    """Return the paths of the files that a compiler read, from the make rule that the option `-MD` wrote.

    `path`: the file with the make rule, which has the form `target: file file \\`. The result is an empty list if this
    file does not exist.
    """
    if not path.exists():
        return []
    text = os.fsdecode(path.read_bytes()).replace("\\\n", " ")
    _, _, rule = text.partition(": ")
    words = re.findall(r"(?:\\.|[^\s\\])+", rule.partition("\n")[0])
    return [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words]


def environment() -> dict[str, str]:
    """Return those environment variables in `VARIABLES` that are set, as a dict from names to values."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def for_compilers() -> dict[str, str]:
    """Return the environment variables of this process, with LC_ALL=C in place of the user's locale.

    With LC_ALL=C, compilers print their messages in English and in ASCII.
    """
    return {**os.environ, "LC_ALL": "C"}


def identity(compiler: str) -> str:
    """Return a digest of everything that can change a compiler's output, apart from the compiler flags and the inputs.

    The digest covers the compiler's path and program, the programs that the compiler calls, and the environment
    variables that the compiler reads.

    `compiler`: the path of the compiler.
    """
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
    """Return the paths of a compiler driver (g++ or clang++), and of its `cc1plus`, assembler and linker.

    `driver`: the path of the driver, or an empty string, which gives an empty result.
    """
    if not driver:
        return ()
    found = [driver]
    for part in PARTS:
        done = _asked(driver, f"-print-prog-name={part}")
        found += [path for path in (shutil.which(done.strip()),) if path]
    return tuple(map(os.path.realpath, found))


@functools.cache
def nvcc_folder(compiler: str) -> str:
    """Return the path of the folder with the programs that nvcc calls, such as ptxas.

    The path comes from the output of `nvcc --dryrun`, because the nvcc on PATH may be a script that calls an nvcc in
    another folder.

    `compiler`: the path of nvcc.
    """
    said = re.search(r"^#\$ _HERE_=(.+)$", _asked(compiler, "--dryrun", "-x", "cu", "-c", os.devnull), re.MULTILINE)
    return said[1] if said else os.path.dirname(compiler)


def _asked(*command: str) -> str:
    """Run a command and return its stdout, followed by its stderr.

    The result is an empty string if the command cannot be run or fails.
    """
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
