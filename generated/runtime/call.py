"""The arguments of one call, as kernels receive them after the operator has checked them.

A call is cut into tiles (see ``tiling``). A ``Segment`` has the positions and page numbers of one tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .rows import Rows
from .tiling import Tile


class BlockSparse(NamedTuple):
    """vLLM's block-sparse pattern: each head attends to the last blocks and to every ``vert_stride``-th block."""

    local_blocks: int
    vert_stride: int
    block_size: int
    head_sliding_step: int
    tp_rank: int


class Scratch(NamedTuple):
    """The caller's scratch tensors, for P partitions of each sequence.

    exp_sums, max_logits: [seqs, heads, P] float32. tmp_out: [seqs, heads, P, head size] in the dtype of ``out``.
    """

    exp_sums: torch.Tensor
    max_logits: torch.Tensor
    tmp_out: torch.Tensor


class Call(NamedTuple):
    """The arguments of a call. The docstring of ``paged_attention_v2`` gives the shapes.

    read_lengths: whether the host may read ``seq_lens`` (see ``lengths.host_lengths``). If not, a call takes as long as
    a call with sequences of ``max_seq_len`` tokens.
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
    """Reshape a scale so that it multiplies a tensor with ``dims`` dimensions after that of the KV heads.

    scale: a float, which stays as it is, or float32 of one element or [kv heads].
    """
    return scale.view(-1, *(1,) * dims) if isinstance(scale, torch.Tensor) else scale


class Segment(NamedTuple):
    """The positions and page numbers of a tile. An item is one partition of one sequence; items are in sequence order.

    rows: the tile's sequences. tile: the tile itself.
    seq_lens: [rows] int32. positions: [1, tokens] int32, the positions in the partitions ``tile.parts``. Both are None
    if nothing reads them.
    hidden: [rows, tokens] bool, True where a slot is past the end of its sequence; None if only the last ``tile.tail``
    slots are.
    pages: [items, pages] int32, block numbers; 0 for a page without a token.
    """

    rows: slice
    tile: Tile
    seq_lens: torch.Tensor | None
    positions: torch.Tensor | None
    hidden: torch.Tensor | None
    pages: torch.Tensor


def longest_length(call: Call, page: int) -> int:
    """The upper bound of a sequence's length: ``max_seq_len``, or the tokens that a block table row holds if fewer."""
    return min(call.max_seq_len, call.block_tables.shape[1] * page)


def clamped_seq_lens(call: Call, page: int) -> torch.Tensor:
    """The sequence lengths, [seqs] int32, clamped on the device to 0 ... ``longest_length``."""
    return call.seq_lens.clamp(0, longest_length(call, page))


def segment(
    call: Call, rows: Rows, first: int, tile: Tile, partition: int, page: int, positions: bool = False
) -> Segment:
    """The segment of ``tile``, which begins at sequence ``first`` of ``rows``.

    Entries of the block table past a sequence's last page become page 0. positions: whether the kernel reads positions
    and lengths even if they mask no slot.
    """
    taken, whole = slice(first, first + tile.rows), partition // page
    start = tile.parts.start * whole
    stop = start + (tile.num_parts - 1) * whole + tile.pages
    table = rows.take(call.block_tables[:, start : stop - tile.tail // page], taken)  # [rows, parts * pages]
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
    """Set exp_sums to 0 and max_logits to -inf in the partitions from ``start`` on, if there is a scratch."""
    if scratch is not None and start < scratch.exp_sums.shape[2]:
        scratch.exp_sums[:, :, start:].zero_()
    if scratch is not None and start < scratch.max_logits.shape[2]:
        scratch.max_logits[:, :, start:].fill_(float("-inf"))
