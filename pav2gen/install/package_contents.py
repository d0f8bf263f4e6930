"""Collects the files to install into a vLLM tree or to pack as a wheel: a generated package, or a part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pav2gen.errors import UserError
from pav2gen.files import sha256
from pav2gen.output import tree
from pav2gen.render import manifest
from pav2gen.render.fileset import FileSet
from pav2gen.render.manifest import SHARED, Manifest
from pav2gen.render.package import render_package
from pav2gen.render.templates import Templates
from pav2gen.runtime.building.library_record import Record as LibraryRecord
from pav2gen.runtime.building.library_record import RecordError, mismatch, open_regular, read_record, source_digest
from pav2gen.wording import did_you_mean, quoted

PAYLOAD = Path(__file__).parent / "payload"

#: The folder of the package for a library of CUDA kernels that was compiled elsewhere.
PREBUILT = "prebuilt"

#: Paths of files that only the kernels' tests need: pytest's settings, and the code that compiles libraries before the
#: tests run.
FOR_TESTS = frozenset(("pytest.ini", "tests/conftest.py", "runtime/building/prefetch.py"))
#: Names of the modules below ``runtime/`` that only the kernels' tests need.
TEST_MODULES = frozenset(("cases", "cuda_harness", "harness", "oracle"))
#: Folders that only the kernels' tests need: the Python code of the tests, and the C++ code that runs CUDA on a CPU.
TEST_FOLDERS = ("runtime/testing/", "runtime/simt/include/")


@dataclass(frozen=True)
class Choice:
    """Which part of a generated package to install, or to pack as a wheel.

    specs: the names of the specs to take. An empty tuple means all specs.
    min_seq_len: the sequence length, in tokens, above which the generated decode operator is preferred. None keeps the
    value of each spec.
    tests: whether to take the kernels' tests too.
    prebuilt: the path of a compiled library of the CUDA kernels to add, or None.
    """

    specs: tuple[str, ...] = ()
    min_seq_len: int | None = None
    tests: bool = False
    prebuilt: Path | None = None


@dataclass(frozen=True)
class PackageContents:
    """The files and manifests that were taken from a generated package.

    files: the files to install, or to pack as a wheel.
    specs: maps the name of each chosen spec to its manifest, which lists the files and the dispatch rows of the spec.
    machine: the CPU architecture of the prebuilt library, such as ``x86_64``, or empty if there is no such library.
    """

    files: FileSet
    specs: Mapping[str, Manifest]
    machine: str = ""

    @property
    def digest(self) -> str:
        """The SHA-256 over the paths and the contents of all ``files``."""
        return sha256("".join(f"{sha256(content)} {path}\n" for path, content in self.files.items()).encode())

    def operators(self) -> dict[str, int]:
        """Return a dict from the name of each operator, such as ``decode``, to the number of its kernels."""
        names = [row.get("operator", "decode") for entry in self.specs.values() for row in entry.rows]
        return {name: names.count(name) for name in sorted(set(names))}

    def thresholds(self) -> list[int]:
        """Return the different values of ``min_seq_len`` of the kernels, in ascending order.

        Such a value is a number of tokens. The generated kernels should decode longer sequences.
        """
        return sorted({row["min_seq_len"] for entry in self.specs.values() for row in entry.rows})


def package_contents(generated: Path, choice: Choice, modules: Sequence[str]) -> PackageContents:
    """Read the part ``choice`` of the package at ``generated``, and add the modules through which vLLM calls the
    package.

    modules: the names, without ``.py``, of the modules to add. The modules are files in the folder ``payload``.

    Raises UserError if there is no complete package, if the package lacks a chosen spec, or if the SHA-256 of a file
    differs from the manifest.
    """
    found = _sound(generated)
    specs = {name: _with_threshold(found.manifests[name], choice.min_seq_len) for name in _names(found, choice.specs)}
    files = FileSet()
    altered = choice.min_seq_len is not None or len(specs) < len(found.specs)
    table = render_package([], list(specs.values()), Templates()).files[SHARED] if altered else {}
    for owner in (SHARED, *specs):
        for path, content in _owned(found, owner).items():
            if _wanted(path, choice):
                files.add(path, table.get(path, content) if path == "dispatch.py" else content)
    for name in modules:
        files.add(f"{name}.py", (PAYLOAD / f"{name}.py").read_bytes())
    return _with_prebuilt(PackageContents(files, specs), choice.prebuilt)


def _sound(generated: Path) -> tree.Tree:
    """Read the package at ``generated``. Raises UserError if the package is not complete, or has no spec."""
    found = tree.read_tree(generated)
    if SHARED not in found.manifests and not found.broken:
        raise UserError("has no generated package; run: pav2gen build specs/NAME.yaml", found.disk.shown)
    if found.incomplete:
        raise UserError("is incomplete: its build was cut short; run pav2gen check", found.disk.shown)
    if SHARED in found.broken:
        raise UserError(f"{found.broken[SHARED]}; run pav2gen check", f"{found.disk.shown}/{manifest.NAME}")
    if not found.sound_manifests():
        raise UserError("has no spec; run: pav2gen build specs/NAME.yaml", found.disk.shown)
    return found


def _names(found: tree.Tree, wanted: Sequence[str]) -> list[str]:
    """Return the names ``wanted``, sorted, or the names of all specs of the package if ``wanted`` is empty."""
    for name in wanted:
        if name not in found.specs:
            raise UserError(
                f"there is no spec {quoted(name)} in it; {did_you_mean(name, found.specs)}", found.disk.shown
            )
    return sorted(set(wanted)) or found.specs


def _with_threshold(entry: Manifest, min_seq_len: int | None) -> Manifest:
    """Return the manifest ``entry`` with ``min_seq_len`` in all its dispatch rows.

    If ``min_seq_len`` is None, the rows stay as they are.
    """
    if min_seq_len is None:
        return entry
    return replace(entry, rows=tuple({**row, "min_seq_len": min_seq_len} for row in entry.rows))


def _owned(found: tree.Tree, owner: str) -> dict[str, bytes]:
    """Return a dict from the path of each file of ``owner``, including its manifest, to the file's content.

    owner: the name of a spec, or ``SHARED`` for the files that all specs use.

    Raises UserError if a file is missing, or if its SHA-256 differs from the manifest.
    """
    entry = found.manifests[owner]
    files = {}
    for path, digest in {**entry.owned(), entry.path: entry.digest}.items():
        there = found.disk.at(path)
        if there is None or there.digest != digest:
            word = "is missing" if there is None else "was edited by hand"
            raise UserError(f"{word}; repair the package first: pav2gen check", f"{found.disk.shown}/{path}")
        files[path] = there.content
    return files


def _wanted(path: str, choice: Choice) -> bool:
    """Whether ``choice`` includes the file ``path`` of the generated package."""
    if path == manifest.path_of(SHARED):  # it would list files that are not taken
        return False
    return choice.tests or not (
        path in FOR_TESTS
        or path.startswith(TEST_FOLDERS)
        or path.split("/")[1:2] == ["tests"]
        or (path.startswith("runtime/") and PurePosixPath(path).stem in TEST_MODULES)
    )


def _with_prebuilt(found: PackageContents, path: Path | None) -> PackageContents:
    """Return a copy of ``found`` with the compiled library at ``path``. If ``path`` is None, return ``found`` itself.

    Raises UserError if the library does not fit the CUDA kernels of ``found``.
    """
    if path is None:
        return found
    library = read_library(path)
    sources = cuda_sources(found)
    if not sources:
        raise UserError("--prebuilt: the chosen specs have no CUDA kernels", str(path))
    if not library.on_gpu:
        raise UserError(f"is for the CPU ({library}); --prebuilt takes a library for a GPU", str(path))
    lacking = library.lacking(sources)
    reason = mismatch(library, sources)
    if lacking and not reason:
        reason = f"it lacks {len(lacking)} of the {len(sources)} CUDA kernels, such as {lacking[0]}"
    if reason:
        raise UserError(f"does not fit the package: {reason}", str(path))
    files = FileSet()
    files.update(found.files)
    files.add(f"{PREBUILT}/{path.name}", _content(path))
    return replace(found, files=files, machine=library.machine)


def cuda_sources(found: PackageContents) -> dict[str, str]:
    """Return a dict from the name of each CUDA kernel's C function to a digest of the kernel's source files."""
    paths = {row["symbol"]: row["cuda"] for entry in found.specs.values() for row in entry.rows if row["cuda"]}
    return {symbol: source_digest(path, found.files.__getitem__) for symbol, path in paths.items()}


def read_library(path: Path) -> LibraryRecord:
    """Read the record that pav2gen put into a compiled library of kernels. No code of the library runs.

    Raises UserError if the file ``path`` is not such a library.
    """
    try:
        return read_record(path)
    except RecordError as reason:
        raise UserError(f"is not usable: {reason}", str(path)) from reason
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", str(path)) from error


def _content(path: Path) -> bytes:
    """Return the bytes of the library at ``path``."""
    try:
        with open(open_regular(path), "rb") as file:
            return file.read()
    except RecordError as reason:
        raise UserError(f"is not usable: {reason}", str(path)) from reason
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", str(path)) from error
