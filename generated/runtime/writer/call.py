"""The arguments of one call of the cache writer, and the places in the cache that the call writes to.

``Write`` and variables named ``write`` stand for one call of ``reshape_and_cache``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch


class Write(NamedTuple):
    """The arguments of one call of ``reshape_and_cache``.

    key, value: [tokens, kv heads, head size]. The heads of a token are contiguous; tokens may have any stride.
    key_cache: [blocks, kv heads, head size / x, block size, x]; x is the number of elements in 16 bytes.
    value_cache: [blocks, kv heads, head size, block size].
    slot_mapping: [tokens] int64 or int32, the place of each token in the caches: block number * block size + slot. A
    token with a place outside the caches is skipped.
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
        """Yield the chunks of the call: (key, value, slot_mapping) of ``tokens`` tokens each, or fewer in the last
        chunk.
        """
        return zip(*(tensor.split(tokens) for tensor in (self.key, self.value, self.slot_mapping)))


class Targets(NamedTuple):
    """States for each token of a chunk which token to read, and where in the caches to write it: int64 [tokens] each.

    rows: the index, within the chunk, of the token to read. An index equal to the number of tokens stands for what
    block 0, slot 0 held before the write.
    blocks, slots: the block number of the place to write to, and the slot within the block.
    """

    rows: torch.Tensor
    blocks: torch.Tensor
    slots: torch.Tensor


def targets(slot_mapping: torch.Tensor, num_blocks: int, page: int) -> Targets:
    """Compute the targets of a chunk on the device. No tensor shape depends on the slots, so the host reads no slots.

    num_blocks: the number of blocks in the cache. page: the number of tokens in a page.

    For a skipped token, the targets are those of another token. The token's key and value are then written twice, with
    the same bytes. If all tokens are skipped, the content of block 0, slot 0 is read and written back.
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
    """Return the scales of K (index 0) and V (index 1), times ``multiple``: float32 [2, 1, kv heads, 1] on the call's
    device.
    """
    kv_heads, device = write.key.shape[1], write.key.device
    scales = torch.empty(2, kv_heads, dtype=torch.float32, device=device)
    for row, scale in zip(scales, (write.k_scale, write.v_scale)):
        row.copy_(scale) if isinstance(scale, torch.Tensor) else row.fill_(scale)
    return scales.mul_(multiple).view(2, 1, kv_heads, 1)
