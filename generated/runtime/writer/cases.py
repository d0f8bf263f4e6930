"""Makes the inputs for tests of the cache writer, and computes the expected content of the cache token by token.

The inputs are random numbers on the CPU, from a fixed seed, in vLLM's layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..check import storage_dtype
from ..choice.key import CacheKey
from ..testing.cases import Scale, scale_of
from ..testing.oracle import nearest_codes
from .call import Write

#: Numbers that a faulty encoding gets wrong: both zeros, ties, numbers near the limits of each format and of its
#: subnormals, infinities, NaN.
ODD_NUMBERS = (
    *(0.0, -0.0, 1.0625, -1.1875, 2.0**-10, -(2.0**-10), 3 * 2.0**-10, 2.0**-17, 3 * 2.0**-17, 2.0**-6, 2.0**-14),
    *(447.0, 448.0, 463.9, 464.0, 480.0, -1e4, 57344.0, 61439.0, 61440.0, -65504.0, 0.5, 1.5, -2.5, 126.5, 127.49),
    *(127.5, -128.0, float("inf"), float("-inf"), float("nan")),
)


@dataclass(frozen=True)
class WriteCase:
    """Describes one test input, that is, a call of ``reshape_and_cache``.

    slots: the elements of ``slot_mapping``.
    blocks: the number of blocks in the cache.
    row_gap: the number of unused elements between two tokens in ``key`` and in ``value``, as in slices of a fused
    projection.
    block_gap: the unused memory between two blocks of the cache, in pages of one KV head.
    scales: the scales of K and of V, each a float or one float per KV head.
    odd: whether keys and values are drawn from ``ODD_NUMBERS``, which are hard to encode, instead of N(0, 1).
    """

    key: CacheKey
    slots: Sequence[int]
    blocks: int = 5
    kv_heads: int = 2
    seed: int = 0
    row_gap: int = 0
    block_gap: int = 0
    slot_dtype: torch.dtype = torch.int64
    scales: tuple[Scale, Scale] = (1.0, 1.0)
    odd: bool = False


def make(case: WriteCase) -> Write:
    """Make the arguments of the call that ``case`` describes, on the CPU. The caches have random bytes.

    Keys and values are random numbers from N(0, 1), or from ``ODD_NUMBERS`` if ``case.odd`` is true.
    """
    generator = torch.Generator().manual_seed(case.seed)
    key, tokens = case.key, len(case.slots)
    width, dtype = case.kv_heads * key.head_size, getattr(torch, key.dtype)
    rows = torch.randn(2, tokens, width + case.row_gap, generator=generator)
    if case.odd:
        numbers = torch.tensor(ODD_NUMBERS)
        rows = numbers[torch.randint(0, len(numbers), rows.shape, generator=generator)]
    key_rows, value_rows = rows.to(dtype)[..., :width].unflatten(-1, (case.kv_heads, key.head_size))
    stored = storage_dtype(key.kv_cache_dtype, dtype)
    item = torch.empty(0, dtype=stored).element_size()
    size = width * key.block_size
    shape = (2, case.blocks, (size + case.block_gap * key.head_size * key.block_size) * item)
    cache = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).view(stored)
    k, v = cache[:, :, :size]
    return Write(
        key=key_rows,
        value=value_rows,
        key_cache=k.unflatten(1, (case.kv_heads, key.head_size * item // 16, key.block_size, 16 // item)),
        value_cache=v.unflatten(1, (case.kv_heads, key.head_size, key.block_size)),
        slot_mapping=torch.tensor(case.slots, dtype=case.slot_dtype),
        k_scale=scale_of(case.scales[0]),
        v_scale=scale_of(case.scales[1]),
    )


def own_caches(write: Write) -> Write:
    """Return ``write`` with copies of its caches. The copies include the gaps between the blocks of the caches."""
    copies = {}
    for name in ("key_cache", "value_cache"):
        cache = getattr(write, name)
        whole = torch.empty(0, dtype=cache.dtype).set_(cache.untyped_storage().clone())
        copies[name] = whole.as_strided(cache.shape, cache.stride(), cache.storage_offset())
    return write._replace(**copies)


def expected(write: Write, kv_cache_dtype: str) -> Write:
    """Return ``write`` with copies of its caches that hold the expected content after the call."""
    after = own_caches(write)
    blocks, _, grains, page, x = write.key_cache.shape
    stored = [
        quantized(write.key, write.k_scale, kv_cache_dtype),
        quantized(write.value, write.v_scale, kv_cache_dtype),
    ]
    for token, slot in enumerate(write.slot_mapping.tolist()):
        if 0 <= slot < blocks * page:
            block, place = divmod(slot, page)
            after.key_cache[block, :, :, place] = stored[0][token].view(-1, grains, x)
            after.value_cache[block, :, :, place] = stored[1][token]
    return after


def quantized(rows: torch.Tensor, scale: float | torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    """Return the elements that the cache must hold for the keys or values ``rows`` [tokens, kv heads, head size].

    If ``kv_cache_dtype`` is ``auto``, the result is ``rows`` itself. For another ``kv_cache_dtype``, the result is
    ``rows`` / ``scale``, encoded in the format of the cache.
    """
    if kv_cache_dtype == "auto":
        return rows
    divided = rows.float() / torch.as_tensor(scale, dtype=torch.float32).view(-1, 1)
    return nearest_codes(divided.double(), kv_cache_dtype)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two caches have the same bytes, including the gaps between their blocks."""
    whole = [torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage()) for cache in (a, b)]
    return torch.equal(*whole)
