"""Reads and checks the record in a compiled library: the compiler, the GPU architecture, and digests of the sources.

The record is JSON text in a section of the library's ELF file. This module reads the record from the file's bytes. A
library can therefore be checked before any of its code runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: The name of the ELF section with the record, and the version of the record's format.
SECTION = ".pav2"
FORMAT = 1

#: The largest allowed size, in bytes, of a record and of an ELF file's section table. A file with a larger one is
#: damaged.
MOST_BYTES = 16 << 20

#: Maps the number of a type of CPU in an ELF file to the name of the CPU in ``platform.machine()`` and in the tags of
#: wheels.
MACHINES = {62: "x86_64", 183: "aarch64"}

#: The layout of an ELF file's header, with these fields: e_ident, e_machine, e_shoff, e_shentsize, e_shnum and
#: e_shstrndx.
_HEADER = struct.Struct("<16s2xH20xQ10xHHH")
#: The layout of a section's header in an ELF file, with these fields: the offset of the section's name in the table of
#: names, the offset of the section in the file, and its size.
_SECTION = struct.Struct("<I20xQQ24x")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_HEAD = re.compile(r"\A(?:[ \t]*(?://[^\n]*)?\n)*")


class RecordError(ValueError):
    """A file is not a library of pav2 kernels, or its record cannot be read. The error message does not contain the
    path.
    """


class Record(NamedTuple):
    """The description of a compiled library, which is stored in the library file.

    toolchain: corex, nvcc or host.
    arch: the GPU architecture, such as ivcore10 or sm_75, or the CPU type for the host toolchain.
    warp_size: the warp size that the kernels were compiled for.
    checked: whether the kernels check and count their memory accesses, which only the host toolchain supports.
    compiler: the output of the compiler's version option.
    kernels: a digest of each kernel's sources, by the name of the kernel's entry function (its symbol).
    machine: the CPU type of the library's host code, from the ELF header.
    """

    toolchain: str
    arch: str
    warp_size: int
    checked: bool
    compiler: str
    kernels: Mapping[str, str]
    machine: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether the kernels run on a GPU. Kernels of the toolchain ``host`` run on the CPU."""
        return self.toolchain != "host"

    def __str__(self) -> str:
        kind = " checked" if self.checked else ""
        return f"{self.toolchain}{kind}, {self.arch}, warp size {self.warp_size}, {len(self.kernels)} kernels"

    def text(self) -> str:
        """Return the record as JSON text."""
        fields = {name: value for name, value in self._asdict().items() if name != "machine"}
        return json.dumps({"format": FORMAT, **fields})

    def differing(self, sources: Mapping[str, str]) -> list[str]:
        """Return the sorted symbols of the library's kernels whose sources differ from the package's sources.

        A symbol is the name of a kernel's entry function. The result contains only symbols that both the record and
        ``sources`` contain.

        sources: the digest (see ``source_digest``) of each kernel's sources in the package, by the kernel's symbol.
        """
        return sorted(symbol for symbol in self.kernels.keys() & sources if self.kernels[symbol] != sources[symbol])

    def lacking(self, sources: Mapping[str, str]) -> list[str]:
        """Return the sorted symbols of the kernels that ``sources`` contains and the library lacks.

        sources: the digest (see ``source_digest``) of each kernel's sources, by the kernel's symbol.
        """
        return sorted(sources.keys() - self.kernels.keys())


def read_record(path: str | os.PathLike[str]) -> Record:
    """Read the record in the library file at ``path``, without running any code of the library.

    Raises RecordError if the file is not a regular file, not a complete ELF library, or has no record. Raises OSError
    if the file cannot be opened. The function never reads from a FIFO or a device, but raises RecordError.
    """
    handle = open_regular(path)
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(file.fileno()).st_size

        def read(offset: int, count: int) -> bytes:
            if count > MOST_BYTES or offset + count > size:
                raise RecordError("the file is cut short or damaged")
            file.seek(offset)
            return file.read(count)

        if size < _HEADER.size or read(0, 4) != b"\x7fELF":
            raise RecordError("it is not a shared library (not an ELF file)")
        machine, content = _find_section(read)
    return _parse(content, machine)


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a regular file for reading, and return the file descriptor.

    Raises RecordError if ``path`` is not a regular file, for example if ``path`` is a FIFO. The function never waits
    for data.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RecordError("it is not a regular file")
    return handle


def source_digest(path: str, read: Callable[[str], bytes]) -> str:
    """Return a digest of a kernel's source file and of all headers that the source includes by a relative path.

    The digest ignores the comments at the top of a file, because these comments do not affect the code. The digest also
    ignores headers for which ``read`` raises FileNotFoundError or KeyError, because these headers belong to the
    compiler.

    path: the path of the source file, with forward slashes.
    read: a function that returns the bytes of the file at a path.
    """
    texts = {name: _HEAD.sub("", text, count=1) for name, text in closure(path, read).items()}
    headers = sorted((os.path.relpath(name, os.path.dirname(path)), text) for name, text in texts.items())
    return hashlib.sha256(repr(headers).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def closure(path: str, read: Callable[[str], bytes]) -> dict[str, str]:
    """Return the text of a source file and of every header that the source includes by a relative path.

    The result maps each file's path to the file's text. ``source_digest`` describes the parameters.
    """
    texts: dict[str, str] = {}
    queue = [path]
    while queue:
        name = queue.pop()
        if name in texts:
            continue
        try:
            texts[name] = read(name).decode("utf-8", "surrogateescape")
        except (FileNotFoundError, KeyError):
            if name == path:
                raise
            continue
        folder = os.path.dirname(name)
        queue += [os.path.normpath(os.path.join(folder, found)) for found in _INCLUDE.findall(texts[name])]
    return texts


def source_digests(kernels: Mapping[str, Path]) -> dict[str, str]:
    """Return a digest of each kernel's sources on the disk, by the name of the kernel's entry function.

    kernels: the source file of each kernel, by the name of the kernel's entry function.

    Raises OSError if a source file cannot be read.
    """
    known: dict[str, bytes] = {}

    def read(name: str) -> bytes:
        if name not in known:
            known[name] = Path(name).read_bytes()
        return known[name]

    return {symbol: source_digest(str(path), read) for symbol, path in kernels.items()}


def mismatch(record: Record, sources: Mapping[str, str]) -> str:
    """Return why a library does not fit a package, or an empty string if the library fits.

    A fitting library has at least one of the package's kernels, and was compiled from the package's sources of these
    kernels. A fitting library may lack other kernels of the package, and may contain kernels that the package lacks.

    record: the record in the library.
    sources: the digest of each kernel's sources in the package, by the name of the kernel's entry function.
    """
    if not record.kernels.keys() & sources:
        return "it has none of the kernels of this package"
    different = record.differing(sources)
    if not different:
        return ""
    number = f"{len(different)} of its {len(record.kernels)} kernels" if len(record.kernels) > 1 else "its kernel"
    return f"{number} (as {different[0]}) was compiled from other sources than this package has; compile it again"


def _find_section(read: Callable[[int, int], bytes]) -> tuple[str, bytes]:
    """Find the section with the record in an ELF file. Return the CPU type and the content of the section.

    read: a function ``read(offset, count)`` that returns ``count`` bytes of the file, from ``offset`` on.

    Raises RecordError if the file has no such section.
    """
    ident, machine, table, entry_bytes, entries, names_at = _HEADER.unpack(read(0, _HEADER.size))
    if ident[4:6] != b"\x02\x01":
        raise RecordError("it is not a 64-bit little-endian library")
    if not table or entry_bytes != _SECTION.size or names_at >= entries:
        raise RecordError("it has no pav2 record: it was stripped, or it is not a library of pav2 kernels")
    raw = read(table, entry_bytes * entries)
    sections = [_SECTION.unpack_from(raw, i * entry_bytes) for i in range(entries)]
    _, names_offset, names_bytes = sections[names_at]
    names = read(names_offset, names_bytes)
    wanted = f"{SECTION}\0".encode()
    for name, offset, count in sections:
        if names[name : name + len(wanted)] == wanted:
            return MACHINES.get(machine, f"machine {machine}"), read(offset, count)
    raise RecordError("it has no pav2 record: it is not a library of pav2 kernels, or an older version built it")


def _parse(content: bytes, machine: str) -> Record:
    """Parse the content of an ELF section as a record.

    machine: the CPU type from the ELF header.

    Raises RecordError if the record's format is unknown or the content is damaged.
    """
    try:
        fields: Any = json.loads(content.rstrip(b"\0").decode())
        if fields.pop("format") != FORMAT:
            raise RecordError("its record is of another version of pav2gen; compile it again")
        record = Record(machine=machine, **fields)
        types: Sequence[type] = (str, str, int, bool, str, dict)
        if not all(type(value) is kind for value, kind in zip(record, types)):
            raise ValueError
        if not all(isinstance(word, str) for pair in record.kernels.items() for word in pair):
            raise ValueError
    except RecordError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RecordError("its record can't be read: the file is damaged") from None
    return record
