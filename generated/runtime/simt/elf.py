"""The one thing that is read from object files: the names of `extern __shared__` arrays."""

from __future__ import annotations

import struct
from pathlib import Path

_SYMTAB = 2
_TLS = 6
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def undefined_thread_locals(path: Path) -> list[str]:
    """The thread-local variables that an object file uses and does not define, sorted.

    `__shared__` is `thread_local` here, so these are the dynamic shared arrays that its kernels declare.
    """
    data = path.read_bytes()
    if data[:4] != b"\x7fELF" or data[4] != 2:
        raise ValueError(f"{path} is no 64-bit ELF object file")
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
