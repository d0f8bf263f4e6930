"""Loads a library of CUDA kernels that were compiled for the CPU, and runs these kernels in sessions.

A session is a series of kernel launches with one `Policy` and one report of faults and counters.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .policy import Policy
from .report import Report, read_report

_FORMAT = 1


class Program:
    """A loaded library of CUDA kernels that were compiled for the CPU.

    The functions `build` and `attach` return a `Program`.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.path = Path(library._name or "the process")
        try:
            found = library.simt_format()
        except AttributeError:
            raise ValueError(f"{self.path} was not built with the simt runtime") from None
        if found != _FORMAT:
            raise ValueError(
                f"{self.path} has format {found} of the simt runtime, but this module needs format {_FORMAT}; "
                "rebuild it"
            )
        self.warp_size: int = library.simt_warp_size()
        self.checked = bool(library.simt_checked())
        library.simt_set.argtypes = [ctypes.c_char_p, ctypes.c_longlong]
        library.simt_buffer.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
        library.simt_buffer.restype = ctypes.c_char_p
        library.simt_report.restype = ctypes.c_char_p
        library.simt_message.restype = ctypes.c_char_p

    def __repr__(self) -> str:
        return f"<simt {'checked' if self.checked else 'fast'} library, warp size {self.warp_size}: {self.path.name}>"

    def fn(self, name: str) -> Any:
        """Return the `extern "C"` function `name` of the CUDA sources, as a ctypes function that returns an int.

        :raises AttributeError: the library exports no function of that name
        """
        try:
            return self.library[name]
        except AttributeError:
            raise AttributeError(
                f'{self.path.name} exports no {name!r}: declare it extern "C" __attribute__((visibility("default")))'
            ) from None

    @contextmanager
    def session(self, **policy: Any) -> Iterator[Session]:
        """Return a context manager that opens a session, that is, a series of kernel launches with one `Policy` and one
        report.

        A library can have only one open session at a time.

        :param policy: the settings of the session, as keyword arguments for `Policy`
        """
        session = Session(self, Policy(**policy))
        try:
            yield session
        finally:
            session.close()

    @property
    def message(self) -> str:
        """The reason why the last failed kernel launch was stopped, as a sentence, or an empty string if no launch has
        failed.
        """
        return str(self.library.simt_message().decode("utf-8", "replace"))


def attach(library: ctypes.CDLL | str | os.PathLike[str]) -> Program:
    """Load a library that another build system has built with the commands of `compile_commands`.

    `library`: the path of the library, or a loaded ctypes.CDLL.
    """
    return Program(library if isinstance(library, ctypes.CDLL) else ctypes.CDLL(os.fspath(library)))


class Session:
    """A series of kernel launches with one `Policy`, one report, and the buffers that the kernels may access."""

    def __init__(self, program: Program, policy: Policy) -> None:
        self.program = program
        self._raw: bytes | None = None
        self._report: Report | None = None
        self._keep: list[Any] = []
        self._names: set[str] = set()
        program.library.simt_reset()
        for name, value in policy.settings():
            if program.library.simt_set(name.encode(), value) != 0:
                raise ValueError(f"the runtime of {program.path} does not know the policy {name!r}")

    def buffer(self, name: str, memory: Any, nbytes: int | None = None, *, writable: bool = True,
               initialised: bool = True) -> None:  # fmt: skip
        """Register memory as a buffer that the kernels of this session may access.

        :param name: the name of the buffer in the report
        :param memory: a torch tensor, a numpy array, another object with Python's buffer protocol, or an address
        :param nbytes: the size of the buffer in bytes, required only if `memory` is an address
        :param writable: if False, the checks report every write to the buffer
        :param initialised: if False, the checks report every read of a byte that has not been written in this session
        :raises TypeError: `memory` is neither a tensor, an array, an object with the buffer protocol, nor an address
        :raises ValueError: the name is already used, the memory overlaps another buffer or is not contiguous, `nbytes`
            is missing, or the session is closed
        """
        if self._raw is not None:
            raise ValueError("the session is closed")
        if name in self._names:
            raise ValueError(f"a buffer named {name!r} is registered already")
        address, size = address_of(memory)
        size = size if nbytes is None else nbytes
        if size is None:
            raise ValueError(f"buffer {name!r}: an address needs its size, nbytes=")
        if size > 0:
            other = self.program.library.simt_buffer(address, size, name.encode(), writable, initialised)
            if other is not None:
                raise ValueError(f"buffer {name!r} overlaps buffer {other.decode()!r}")
        self._names.add(name)
        self._keep.append(memory)

    @property
    def report(self) -> Report:
        """The faults and counters of all kernel launches in this session so far.

        After `close`, the report no longer changes.
        """
        if self._raw is None:
            return read_report(self.program.library.simt_report())
        if self._report is None:
            self._report = read_report(self._raw)
        return self._report

    def close(self) -> None:
        """End the session, keep its final report, and clear the buffers, faults and counters in the library."""
        if self._raw is None:
            self._raw = self.program.library.simt_report()
            self.program.library.simt_reset()
            self._keep.clear()


def address_of(memory: Any) -> tuple[int, int | None]:
    """Return the address and the size in bytes of contiguous memory.

    The size is None if `memory` is an int, that is, an address.

    :raises TypeError: `memory` is not a tensor, an array, an object with the buffer protocol, or an address
    :raises ValueError: `memory` is not contiguous, or Python may only read it
    """
    if isinstance(memory, int):
        return memory, None
    if hasattr(memory, "data_ptr"):  # a torch tensor
        if not memory.is_contiguous():
            raise ValueError("the tensor is not contiguous; register the tensor it is a view of, or give nbytes")
        return memory.data_ptr(), memory.numel() * memory.element_size()
    if isinstance(memory, ctypes.Array | ctypes.Structure):
        return ctypes.addressof(memory), ctypes.sizeof(memory)
    interface = getattr(memory, "__array_interface__", None)
    if interface is not None:
        if interface.get("strides") is not None:
            raise ValueError("the array is not contiguous; register the array it is a view of")
        size = int(interface["typestr"][2:])
        for n in interface["shape"]:
            size *= n
        return interface["data"][0], size
    return _buffer_address(memory)


def _buffer_address(memory: Any) -> tuple[int, int]:
    try:
        view = memoryview(memory)
    except TypeError:
        raise TypeError(f"a tensor, an array, a buffer or an address, not {type(memory).__name__}") from None
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous")
    if view.readonly:
        raise ValueError("the buffer is read-only for Python; give its address and nbytes")
    return ctypes.addressof((ctypes.c_char * view.nbytes).from_buffer(view.cast("B"))), view.nbytes
