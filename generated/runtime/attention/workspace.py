"""The workspace of a call: one block of memory that holds all buffers of a PyTorch kernel.

With a single block, the size of the workspace is known exactly. On a CPU, each thread keeps its block for the next
call. If the block were freed, its memory would return to the operating system. The page faults that a new block causes
would then take more time than the arithmetic of a short call. On a GPU, torch's caching allocator keeps the memory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

import torch

ALIGNMENT = 256

#: A workspace caches the buffers for up to this many tile shapes (see ``tiling.Tile.shape``). A full cache is cleared.
MOST_SPACES = 64

#: The smallest block on a CPU, in bytes. It is large enough that sequences can grow for many calls before a larger
#: block is needed.
LEAST_BYTES = 1 << 20

S = TypeVar("S")


def aligned(num_bytes: int) -> int:
    """``num_bytes`` rounded up to a multiple of 256, the alignment of a buffer."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Buffer:
    """A part of the workspace, with a cache of the tensors (views) over it. All chunks of the same size use the same
    view.
    """

    def __init__(self, data: torch.Tensor) -> None:
        """data: the memory as a one-dimensional uint8 tensor, aligned for every dtype."""
        self._data, self.device = data, data.device
        self._views: dict[Hashable, Any] = {}

    def view(self, dtype: torch.dtype, *shape: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
        """A contiguous tensor of ``dtype`` and ``shape`` over the first bytes of this buffer.

        order: if given, the dimensions of the tensor are permuted to this order, as by ``torch.Tensor.permute``.
        """
        found = self._views.get((dtype, shape, order))
        if found is None:
            with torch.inference_mode(False):  # a cached view must serve outside of that mode too
                found = self._data.view(dtype).narrow(0, 0, math.prod(shape)).view(shape)
                self._views[dtype, shape, order] = found = found if order is None else found.permute(order)
        return cast(torch.Tensor, found)

    def once(self, make: Callable[..., S], space: object, *sizes: Hashable) -> S:
        """Return ``make(space, *sizes)``: a tuple of views of the buffers in ``space``. The result is cached.

        space: a result of ``Workspace.space`` that has this buffer.
        """
        found = self._views.get((make, sizes))
        if found is None:
            with torch.inference_mode(False):
                found = self._views[make, sizes] = make(space, *sizes)
        return cast(S, found)


def total(sizes: Mapping[str, int]) -> int:
    """Return the size in bytes of a block that holds an aligned buffer for each entry of ``sizes`` (name to bytes)."""
    return sum(map(aligned, sizes.values()))


def carve(block: torch.Tensor, sizes: Mapping[str, int]) -> dict[str, Buffer]:
    """Divide ``block`` (uint8) into one buffer for each entry of ``sizes`` (name to bytes), aligned to 256 bytes."""
    pieces = block.narrow(0, 0, total(sizes)).split([aligned(size) for size in sizes.values()])
    return {name: Buffer(piece) for name, piece in zip(sizes, pieces)}


class Workspace:
    """A block of memory that the tiles of a call use one after the other, with a cache of each tile shape's buffers."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # the memory of an inference tensor could not be used outside that mode
            self._block = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._spaces: dict[Hashable, Any] = {}

    @property
    def num_bytes(self) -> int:
        """The size of the block in bytes."""
        return self._block.shape[0]

    def space(self, space: Callable[..., S], sizes: Mapping[str, int], start: int = 0) -> S:
        """Return ``space(**buffers)``, with a buffer for each entry of ``sizes`` (name to bytes). The result is cached.

        space: a type with a field for each buffer.
        start: the byte of the block where the buffers begin, a multiple of 256. Results with overlapping bytes share
        memory.
        """
        key = space, start, *sizes.values()
        found = self._spaces.get(key)
        if found is None:
            if len(self._spaces) >= MOST_SPACES:
                self._spaces.clear()
            found = self._spaces[key] = space(**carve(self._block[start:], sizes))
        return cast(S, found)


_kept = threading.local()


class workspace:
    """A context manager that gives a workspace of at least ``num_bytes`` on ``device``, for one call.

    On a CPU, the thread's previous workspace is used again if it is large enough, and no outer call is using it.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._num_bytes, self._device = num_bytes, device

    def __enter__(self) -> Workspace:
        if self._device.type != "cpu":
            return Workspace(self._num_bytes, self._device)
        found: Workspace | None = getattr(_kept, "workspace", None)
        _kept.workspace = None
        if found is None or found.num_bytes < self._num_bytes:
            found = None  # frees the old workspace before a new one is allocated
            found = Workspace(max(self._num_bytes, LEAST_BYTES), self._device)
        self._lent = found
        return found

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None and self._device.type == "cpu":
            _kept.workspace = self._lent


def forget() -> None:
    """Free the workspace that this thread keeps for its next call on a CPU."""
    _kept.workspace = None


def grain_dtype(device: torch.device) -> torch.dtype:
    """The dtype as which pages of the KV cache are viewed while they are copied on ``device``.

    A copy only moves bytes, so any dtype gives the same result. A CPU is fastest with 16-byte elements. A GPU reaches
    the same bandwidth with 8-byte integers, which every GPU supports.
    """
    return torch.complex128 if device.type == "cpu" else torch.int64
