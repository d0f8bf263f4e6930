"""Finds the cache pages that a query head skips under vLLM's block-sparse pattern.

The function ``paged_attention_kernel`` of vLLM 0.6.3 defines the pattern.
"""

from __future__ import annotations

import torch

from ..call import Call, Segment


def skipped_pages(call: Call, part: Segment, page: int) -> torch.Tensor:
    """Return a bool tensor [items, kv_heads, group, pages] that is True where a query head skips a page.

    In the shape, items is the number of (sequence, partition) pairs in ``part``, and group is the number of query heads
    per KV head. The last dimension, pages, is the number of pages in a partition.

    A sparse block consists of ``call.sparse.block_size`` consecutive tokens of a sequence. A head attends to a page in
    sparse block k if (k + offset) % vert_stride is 0, or if k > q - local_blocks. The rule's q is the sparse block of
    the sequence's last token, and the rule's offset is the head's number from ``_offsets``.

    part: the sequences and partitions that the kernel is processing.
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
    """Return each query head's offset in the rule of ``skipped_pages``, [kv_heads, query heads per KV head] int32.

    The offset is 1 + |head_sliding_step| * h. If head_sliding_step >= 0, h is the index of the query head, else the
    index of the KV head. The index h counts the heads of all tensor-parallel ranks.
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
