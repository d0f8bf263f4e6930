"""Holds the arguments of one call of ``reshape_and_cache``, and computes the places in the cache that the call writes
to.

A variable named ``write`` is a ``Write``, that is, the arguments of one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch


class Write(NamedTuple):
    """The arguments of one call of ``reshape_and_cache``.

    key, value: [tokens, kv heads, head size]. The heads of a token are contiguous, and the stride between tokens can be
    any number.
    key_cache: [blocks, kv heads, head size / x, block size, x], where x is the number of elements in 16 bytes.
    value_cache: [blocks, kv heads, head size, block size].
    slot_mapping: [tokens] int64 or int32, the slot of each token in the caches, which is block number * block size +
    index within the block. Kernels skip a token whose slot is outside the caches.
    k_scale, v_scale: the scales of the caches, each a float, or a float32 tensor with one element or [kv heads].
    """

    key: torch.Tensor
    value: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    slot_mapping: torch.Tensor
    k_scale: float | torch.Tensor
    v_scale: float | torch.Tensor

    def chunks(self, tokens: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Split the call into chunks of ``tokens`` tokens, and yield (key, value, slot_mapping) of each chunk.

        The last chunk may have fewer tokens.
        """
        return zip(*(tensor.split(tokens) for tensor in (self.key, self.value, self.slot_mapping)))


class Targets(NamedTuple):
    """The sources and the destinations of the copies that write one chunk, that is, some tokens of a call, to the
    cache.

    Each field is a tensor [tokens of the chunk] int64.

    rows: the index in the chunk of the token to copy. An index equal to the number of tokens in the chunk means the old
    content of slot 0 of block 0.
    blocks: the number of the cache block to write to.
    slots: the index within the cache block of the token to overwrite.
    """

    rows: torch.Tensor
    blocks: torch.Tensor
    slots: torch.Tensor


def targets(slot_mapping: torch.Tensor, num_blocks: int, page: int) -> Targets:
    """Compute, on the device, where in the cache to write each token of a chunk, that is, of some tokens of a call.

    The host does not read ``slot_mapping``, because no tensor shape depends on its values. A token whose slot is
    outside the cache is skipped: the kernel writes another token of the chunk a second time to that other token's slot.
    If all tokens are skipped, the kernel overwrites slot 0 of block 0 with its old content.

    slot_mapping: [tokens of the chunk] int64 or int32. num_blocks: the number of blocks in the cache. page: the number
    of tokens in a page.
    """
    tokens = slot_mapping.shape[0]
    slots = slot_mapping.long()
    kept = (slots >= 0) & (slots < num_blocks * page)
    some, stand_in = kept.to(torch.int32).max(0, keepdim=True)  # [1]: whether any is kept, and one that is
    slots = torch.where(kept, slots, slots[stand_in] * some)
    own = torch.arange(tokens, device=slots.device)
    rows = torch.where(kept, own, stand_in.masked_fill(some == 0, tokens))
    return Targets(rows, slots // page, slots % page)


def scale_rows(write: Write, multiple: float = 1.0) -> torch.Tensor:
    """Return the scales of K (index 0) and V (index 1), times ``multiple``.

    The result is float32 [2, 1, kv heads, 1] on the call's device.
    """
    kv_heads, device = write.key.shape[1], write.key.device
    scales = torch.empty(2, kv_heads, dtype=torch.float32, device=device)
    for row, scale in zip(scales, (write.k_scale, write.v_scale)):
        row.copy_(scale) if isinstance(scale, torch.Tensor) else row.fill_(scale)
    return scales.mul_(multiple).view(2, 1, kv_heads, 1)
