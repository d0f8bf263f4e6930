"""One allocation for each call, from which a kernel takes its buffers.

A single block keeps the workspace exact, and on a CPU it keeps the memory warm: an allocator returns large freed blocks
to the system, and faulting them in anew costs more than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

import torch

ALIGNMENT = 256

S = TypeVar("S")


def aligned(num_bytes: int) -> int:
    """``num_bytes`` rounded up to the alignment of a buffer."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Buffer:
    """A part of the workspace, seen as what is stored in it. A view is made once: chunks of one size share it."""

    def __init__(self, data: torch.Tensor) -> None:
        """Views of ``data``: bytes (uint8), aligned for every dtype."""
        self._data = data
        self._views: dict[tuple[torch.dtype, tuple[int, ...]], torch.Tensor] = {}

    def view(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """The first bytes as a contiguous tensor of ``dtype`` and ``shape``."""
        found = self._views.get((dtype, shape))
        if found is None:
            found = self._data.view(dtype).narrow(0, 0, math.prod(shape)).view(shape)
            self._views[dtype, shape] = found
        return found


def total(sizes: Mapping[str, int]) -> int:
    """Bytes of an allocation that holds one buffer for each of ``sizes``, in bytes."""
    return sum(map(aligned, sizes.values()))


def carve(block: torch.Tensor, sizes: Mapping[str, int]) -> dict[str, Buffer]:
    """A buffer for each of ``sizes``, in bytes, by name: aligned to 256 bytes, cut from ``block`` (uint8)."""
    pieces = block.narrow(0, 0, total(sizes)).split([aligned(size) for size in sizes.values()])
    return {name: Buffer(piece) for name, piece in zip(sizes, pieces)}


class Workspace(Generic[S]):
    """One allocation that serves several shapes of tiles, one after the other.

    ``space`` makes the buffers of a shape, given by name. ``sizes`` are their bytes, for each shape.
    """

    def __init__(
        self, space: Callable[..., S], sizes: Mapping[Hashable, Mapping[str, int]], device: torch.device
    ) -> None:
        self._space, self._sizes = space, sizes
        self._block = torch.empty(max(map(total, sizes.values())), dtype=torch.uint8, device=device)
        self._spaces: dict[Hashable, S] = {}

    def space(self, shape: Hashable) -> S:
        """The buffers of a shape. They share memory with those of every other shape."""
        if shape not in self._spaces:
            self._spaces[shape] = self._space(**carve(self._block, self._sizes[shape]))
        return self._spaces[shape]


def grain_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which cache pages are moved without regard to what they hold.

    A CPU copies 16-byte items fastest; a GPU coalesces 8-byte ones as well, and integers are safe on every card.
    """
    return torch.complex128 if device.type == "cpu" else torch.int64
