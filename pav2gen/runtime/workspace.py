"""One allocation for each call, from which a kernel takes its buffers.

A single block keeps the workspace exact, and on a CPU it keeps the memory warm: an allocator returns large freed blocks
to the system, and faulting them in anew costs more than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

ALIGNMENT = 256


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


def carve(sizes: Sequence[int], device: torch.device) -> tuple[Buffer, ...]:
    """One buffer (uninitialised, aligned to 256 bytes) for each of ``sizes``, in bytes, all cut from one allocation."""
    block = torch.empty(sum(map(aligned, sizes)), dtype=torch.uint8, device=device)
    return tuple(map(Buffer, torch.split(block, [aligned(size) for size in sizes])))


def grain_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which cache pages are moved without regard to what they hold.

    A CPU copies 16-byte items fastest; a GPU coalesces 8-byte ones as well, and integers are safe on every card.
    """
    return torch.complex128 if device.type == "cpu" else torch.int64
