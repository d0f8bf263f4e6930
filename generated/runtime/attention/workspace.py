"""The workspace of a call: one block of memory that holds all buffers of a PyTorch kernel.

On a CPU, each thread keeps its workspace for the thread's next call. A new block of memory would cause page faults,
which take more time than the arithmetic of a short call. On a GPU, PyTorch's caching allocator keeps the memory.
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
    """Return ``num_bytes`` rounded up to a multiple of 256, the alignment of a buffer in bytes."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Buffer:
    """A part of the workspace's memory, with a cache of the tensors that view this memory."""

    def __init__(self, data: torch.Tensor) -> None:
        """data: the memory as a one-dimensional uint8 tensor, whose address is aligned for every dtype."""
        self._data, self.device = data, data.device
        self._views: dict[Hashable, Any] = {}

    def view(self, dtype: torch.dtype, *shape: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
        """Return a tensor of the given dtype and shape over the first bytes of this buffer. The result is cached.

        order: the new order of the tensor's dimensions, as in ``torch.Tensor.permute``, or None for no permutation.
        """
        found = self._views.get((dtype, shape, order))
        if found is None:
            with torch.inference_mode(False):  # a cached view must serve outside of that mode too
                found = self._data.view(dtype).narrow(0, 0, math.prod(shape)).view(shape)
                self._views[dtype, shape, order] = found = found if order is None else found.permute(order)
        return cast(torch.Tensor, found)

    def once(self, make: Callable[..., S], space: object, *sizes: Hashable) -> S:
        """Return ``make(space, *sizes)``, a tuple of tensors that view the buffers in ``space``. The result is cached.

        space: an object that ``Workspace.space`` returned, and that has this buffer as a field.
        """
        found = self._views.get((make, sizes))
        if found is None:
            with torch.inference_mode(False):
                found = self._views[make, sizes] = make(space, *sizes)
        return cast(S, found)


def total(sizes: Mapping[str, int]) -> int:
    """Return the size in bytes of a memory block that holds one aligned buffer for each entry of ``sizes`` (name to
    bytes).
    """
    return sum(map(aligned, sizes.values()))


def carve(block: torch.Tensor, sizes: Mapping[str, int]) -> dict[str, Buffer]:
    """Divide a uint8 tensor into one buffer for each entry of ``sizes`` (name to bytes), each aligned to 256 bytes."""
    pieces = block.narrow(0, 0, total(sizes)).split([aligned(size) for size in sizes.values()])
    return {name: Buffer(piece) for name, piece in zip(sizes, pieces)}


class Workspace:
    """A block of memory for the buffers of a kernel, with a cache of the buffers for each combination of sizes."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # the memory of an inference tensor could not be used outside that mode
            self._block = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._spaces: dict[Hashable, Any] = {}

    @property
    def num_bytes(self) -> int:
        """The size of the workspace in bytes."""
        return self._block.shape[0]

    def space(self, space: Callable[..., S], sizes: Mapping[str, int], start: int = 0) -> S:
        """Return ``space(**buffers)``, with one buffer for each entry of ``sizes`` (name to bytes). The result is
        cached.

        space: a type with one field for each buffer.
        start: the offset of the first buffer in the workspace, in bytes, a multiple of 256.

        Buffers of different calls share memory if the buffers have bytes in common.
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
    """Provides a ``Workspace`` of at least ``num_bytes`` bytes on ``device``, as a context manager for one call.

    On a CPU, the context manager reuses the thread's previous workspace if the size suffices and no outer call uses the
    workspace.
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
    """Free the workspace that the current thread keeps for its next call on a CPU."""
    _kept.workspace = None


def grain_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of the elements in which a PyTorch kernel copies pages of the KV cache on ``device``.

    A copy only moves bytes, so every dtype gives the same result. A CPU copies fastest with 16-byte elements. A GPU
    copies 8-byte integers at the same bandwidth, and every GPU supports 8-byte integers.
    """
    return torch.complex128 if device.type == "cpu" else torch.int64
