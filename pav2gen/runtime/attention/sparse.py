"""Finds the cache pages that a query head skips under vLLM's block-sparse pattern.

The pattern is defined by ``paged_attention_kernel`` in vLLM 0.6.3.
"""

from __future__ import annotations

import torch

from ..call import Call, Segment


def skipped_pages(call: Call, part: Segment, page: int) -> torch.Tensor:
    """Return a bool tensor [items, kv_heads, group, pages] that is True where a query head skips a page.

    A head attends to a page in sparse block k if (k + offset) % vert_stride is 0, or if k > q - local_blocks. Here q is
    the sparse block of the sequence's last token, and ``_offsets`` computes the offset.

    In the shape, items and pages are those of ``part.pages``, and group is the number of query heads per KV head.

    page: the number of tokens in a page.
    """
    sparse, device = call.sparse, call.query.device
    assert sparse is not None and part.positions is not None and part.seq_lens is not None
    starts = part.positions[:, ::page].expand(part.seq_lens.shape[0], -1).clone(memory_format=torch.contiguous_format)
    block = starts.div_(sparse.block_size, rounding_mode="floor")  # [rows, pages of a row]
    last = torch.div(part.seq_lens - 1, sparse.block_size, rounding_mode="floor")
    distant = block <= last.unsqueeze(1) - sparse.local_blocks  # [rows, pages of a row]
    offsets = _offsets(call, device).unsqueeze(-1)  # [kv_heads, group, 1]
    items, pages = part.pages.shape
    strided = (block.view(items, 1, 1, pages) + offsets).remainder(sparse.vert_stride) == 0
    return distant.view(items, 1, 1, pages) & ~strided


def _offsets(call: Call, device: torch.device) -> torch.Tensor:
    """Return the offset in the rule of ``skipped_pages`` for each query head, [kv_heads, group] int32.

    The offset is 1 + |head_sliding_step| * h. If head_sliding_step >= 0, h is the index of the query head, else the
    index of the KV head. The index counts the heads of all tensor-parallel ranks.
    """
    assert call.sparse is not None
    kv_heads, heads = call.key_cache.shape[1], call.query.shape[1]
    step, rank = call.sparse.head_sliding_step, call.sparse.tp_rank
    if step >= 0:
        return (
            (torch.arange(heads, dtype=torch.int32, device=device) + rank * heads).mul_(step).add_(1).view(kv_heads, -1)
        )
    slots = (torch.arange(kv_heads, dtype=torch.int32, device=device) + rank * kv_heads).mul_(-step).add_(1)
    return slots.unsqueeze(1).expand(kv_heads, heads // kv_heads)
