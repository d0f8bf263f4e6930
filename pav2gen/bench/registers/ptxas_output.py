"""Reads what ptxas prints about each CUDA kernel: its registers, its shared memory and its spills."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pav2gen.plan.kernel import AnyKernel

#: For each operator, the name of the CUDA function that reads or writes the KV cache. The usage of this function
#: counts as the usage of the kernel.
KERNELS = {"decode": "partial_kernel", "extend": "partial_kernel", "cache": "write_kernel"}

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?\b(\d+) bytes smem)?")


@dataclass(frozen=True)
class Usage:
    """The registers and the memory that a compiler assigns to a CUDA kernel.

    registers: the number of registers of a thread.
    spilled_bytes: the number of bytes that a thread stores to memory, plus those that it loads again, because it has
    too few registers.
    shared_bytes: the static shared memory of a thread block, in bytes.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int

    def document(self) -> dict[str, int]:
        """Return this usage as a dict that can be written as a JSON object."""
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, object]) -> Usage | None:
        """Return the usage in a JSON object that ``Usage.document`` made. Return None for any other JSON object."""
        names = cls.__dataclass_fields__
        values = [document.get(name) for name in names]
        if document.keys() != names.keys() or not all(type(value) is int and value >= 0 for value in values):
            return None
        return cls(*values)  # type: ignore[arg-type]


def usages(output: str) -> dict[str, Usage]:
    """Return a dict from the mangled name of each kernel function in the output of ``ptxas -v`` to its usage.

    A function is left out if its registers or its spills are missing in the output.
    """
    found = {}
    starts = list(_ENTRY.finditer(output))
    for start, following in zip(starts, [*starts[1:], None]):
        text = output[start.end() : following.start() if following else len(output)]
        spills, used = _SPILLS.search(text), _USED.search(text)
        if spills and used:
            found[start[1]] = Usage(int(used[1]), int(spills[1]) + int(spills[2]), int(used[2] or 0))
    return found


def usage_of(kernel: AnyKernel, found: Mapping[str, Usage]) -> Usage | None:
    """Return the usage of a decode kernel, an extend kernel or a cache writer, or None if ``found`` does not have it.

    found: the result of ``usages``.
    """
    namespace, function = f"{kernel.v.spec}_{kernel.v.slug}", KERNELS[kernel.v.operator]
    name = f"{len(namespace)}{namespace}{len(function)}{function}E"
    return next((usage for mangled, usage in found.items() if name in mangled), None)
