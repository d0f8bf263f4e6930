"""Defines ``Call``, which holds the checked arguments of one decode call in the form that kernels receive.

A PyTorch kernel processes a call in tiles. A tile is a group of partitions whose scores are in memory at the same time.
A ``Segment`` holds the token positions of one tile and the numbers of the KV cache blocks that the tile reads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .attention.rows import Rows, part_of
from .attention.tiling import Tile


class BlockSparse(NamedTuple):
    """The parameters of vLLM's block-sparse attention, which divides a sequence into sparse blocks of tokens.

    Each head attends to the last ``local_blocks`` sparse blocks. In addition, each head attends to its strided blocks,
    that is, to every ``vert_stride``-th sparse block. The docstring of ``skipped_pages`` in attention/sparse.py states
    the exact rule.

    block_size: the number of tokens in a sparse block.
    head_sliding_step: the distance, in sparse blocks, by which the strided blocks shift from one head to the next.
    tp_rank: the tensor-parallel rank of this process. The rank matters because the shift of a head depends on the
    head's index among the heads of all ranks.
    """

    local_blocks: int
    vert_stride: int
    block_size: int
    head_sliding_step: int
    tp_rank: int


class Scratch(NamedTuple):
    """The caller's scratch tensors, in which kernels store the softmax state of each partition.

    In the shapes, heads is the number of query heads. P is the number of partitions of each sequence that the tensor
    can hold.

    exp_sums: the sum of exp(score - maximum) over the tokens of each partition, [seqs, heads, P] float32.
    max_logits: the maximum score of each partition, [seqs, heads, P] float32.
    tmp_out: the attention output of each partition alone, [seqs, heads, P, head size] in the dtype of ``out``.
    """

    exp_sums: torch.Tensor
    max_logits: torch.Tensor
    tmp_out: torch.Tensor


class Call(NamedTuple):
    """The arguments of a decode call. The docstring of the generated package's ``paged_attention_v2`` states the
    shapes.

    tensors: the parameter tensors of the attention modification (an expression that changes scores or hides keys), in
    the order of ``Modification.tensors``.
    read_lengths: whether the host may read the values of ``seq_lens``. A PyTorch kernel whose host does not read the
    values takes as long as if every sequence had ``max_seq_len`` tokens.
    """

    out: torch.Tensor
    scratch: Scratch | None
    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    scale: float
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    max_seq_len: int
    alibi_slopes: torch.Tensor | None
    k_scale: float | torch.Tensor
    v_scale: float | torch.Tensor
    sparse: BlockSparse | None
    softcap: float | None = None
    sliding_window: int | None = None
    sinks: torch.Tensor | None = None
    modification: str | None = None
    tensors: tuple[torch.Tensor, ...] = ()
    lse: torch.Tensor | None = None
    read_lengths: bool = True


def by_head(scale: float | torch.Tensor, dims: int) -> float | torch.Tensor:
    """Append ``dims`` dimensions of size 1 to a scale of the KV cache.

    The result broadcasts to a tensor in which ``dims`` dimensions follow the KV head dimension.

    scale: a float, or a float32 tensor with one element or of shape [kv heads]. A float is returned unchanged.
    """
    return scale.view(-1, *(1,) * dims) if isinstance(scale, torch.Tensor) else scale


class Segment(NamedTuple):
    """The token positions of one tile, and the numbers of the KV cache blocks that the tile reads.

    A page is the part of a sequence that one cache block stores. An item is one partition of one sequence. In
    ``pages``, the items of a sequence follow one another. A token slot is a position in a page, whether or not the
    sequence has a token there. In the shapes, rows is the number of sequences in the tile. ``tokens`` is the number of
    token slots that the tile has for each sequence.

    rows: the tile's sequences, as a slice of the order in which the kernel processes the call's sequences (see
    ``rows.Rows``).
    seq_lens: [rows] int32, the length of each sequence in tokens, or None if the kernel does not need lengths.
    positions: int32, the position of each token slot in its sequence, or None if the kernel does not need positions.
    The shape is [rows, tokens] with a sliding window, and [1, tokens] without a sliding window.
    hidden: [rows, tokens] bool, True for a token slot past the end of its sequence or before its sliding window.
    ``hidden`` is None if all hidden slots are among the last ``Tile.tail`` slots of the tile, because a kernel skips
    these last slots without a mask.
    pages: [items, pages of an item] int32, the number of the cache block that stores each page, or 0 for a page without
    a token.
    """

    rows: slice
    tile: Tile
    seq_lens: torch.Tensor | None
    positions: torch.Tensor | None
    hidden: torch.Tensor | None
    pages: torch.Tensor


def longest_length(call: Call, page: int) -> int:
    """Return an upper bound for the sequence lengths of a call, in tokens.

    The bound is the smaller of ``max_seq_len`` and the number of tokens that one row of the block table can address.

    page: the number of tokens in a page.
    """
    return min(call.max_seq_len, call.block_tables.shape[1] * page)


def clamped_seq_lens(call: Call, page: int) -> torch.Tensor:
    """Return the call's ``seq_lens``, [seqs] int32, clamped to the range from 0 to ``longest_length``.

    page: the number of tokens in a page.
    """
    return call.seq_lens.clamp(0, longest_length(call, page))


def segment(
    call: Call, rows: Rows, first: int, tile: Tile, partition: int, page: int, positions: bool = False
) -> Segment:
    """Make the ``Segment`` of ``tile``. Sequence number ``first`` of ``rows`` is the tile's first sequence.

    Block table entries past the last page of a sequence are replaced by 0.

    partition, page: the number of tokens in a partition and in a page.
    positions: True if the kernel needs positions and sequence lengths even for a tile without hidden token slots.
    """
    taken, whole = slice(first, first + tile.rows), partition // page
    start = tile.parts.start * whole
    stop = start + (tile.num_parts - 1) * whole + tile.pages
    read = part_of(call.block_tables, 1, slice(start, stop - tile.tail // page))
    table = rows.take(read, taken)  # [rows, parts * pages]
    if tile.padded:
        table = torch.constant_pad_nd(table, (0, stop - start - table.shape[1]))
    seq_lens = places = hidden = None
    if tile.masked or positions:
        places = torch.arange(start * page, stop * page, dtype=torch.int32, device=call.query.device).unsqueeze(0)
        seq_lens = rows.seq_lens[taken]
        hidden = torch.ge(places, seq_lens.unsqueeze(1)) if tile.masked else None
    if hidden is not None:
        table = table.masked_fill(hidden[:, ::page], 0)
    elif tile.rows > 1 and not rows.ordered:
        table = table.clone(memory_format=torch.contiguous_format)
    return Segment(taken, tile, seq_lens, places, hidden, table.view(-1, tile.pages))


def clear_scratch(scratch: Scratch | None, start: int) -> None:
    """Set exp_sums to 0 and max_logits to -inf for partition number ``start`` and all later partitions.

    The function does nothing if ``scratch`` is None.
    """
    if scratch is not None and start < scratch.exp_sums.shape[2]:
        scratch.exp_sums[:, :, start:].zero_()
    if scratch is not None and start < scratch.max_logits.shape[2]:
        scratch.max_logits[:, :, start:].fill_(float("-inf"))
