"""The arguments of one decode call, as kernels receive them after the operator has checked them.

PyTorch kernels process a call in tiles (see ``tiling``). A ``Segment`` holds one tile's token positions and the numbers
of the cache blocks that the tile reads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .attention.rows import Rows, part_of
from .attention.tiling import Tile


class BlockSparse(NamedTuple):
    """The parameters of vLLM's block-sparse pattern, which divides a sequence into sparse blocks of tokens.

    Each head attends to the last ``local_blocks`` sparse blocks, and to every ``vert_stride``-th sparse block (the
    strided blocks). ``sparse.skipped_pages`` gives the exact rule.

    block_size: the number of tokens in a sparse block.
    head_sliding_step: by how many sparse blocks the strided blocks shift from one head to the next.
    tp_rank: the tensor-parallel rank of this process. The shift of a head depends on the index of the head among the
    heads of all ranks.
    """

    local_blocks: int
    vert_stride: int
    block_size: int
    head_sliding_step: int
    tp_rank: int


class Scratch(NamedTuple):
    """The caller's scratch tensors, which receive the softmax state of each partition.

    In the shapes, heads is the number of query heads, and P the number of partitions of each sequence that fit.

    exp_sums: the sums z (see ``state``), [seqs, heads, P] float32.
    max_logits: the maxima m, [seqs, heads, P] float32.
    tmp_out: the outputs o / z, [seqs, heads, P, head size] in the dtype of ``out``.
    """

    exp_sums: torch.Tensor
    max_logits: torch.Tensor
    tmp_out: torch.Tensor


class Call(NamedTuple):
    """The arguments of a decode call. The docstring of the generated package's ``paged_attention_v2`` gives the shapes.

    tensors: the parameter tensors of the attention modification, in the order of ``Modification.tensors``.
    read_lengths: whether the host may read ``seq_lens`` (see ``lengths.host_lengths``). If the host does not read the
    lengths, a call takes as long as if every sequence had ``max_seq_len`` tokens.
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
    """Reshape a scale of the KV cache so that it broadcasts to a tensor whose KV head dimension is followed by ``dims``
    more dimensions.

    scale: a float, or a float32 tensor with one element or of shape [kv heads]. A scale that is a float is returned
    unchanged.
    """
    return scale.view(-1, *(1,) * dims) if isinstance(scale, torch.Tensor) else scale


class Segment(NamedTuple):
    """The token positions of one tile, and the numbers of the cache blocks that the tile reads.

    A page is the part of a sequence that one cache block stores. An item is one partition of one sequence. The items of
    a sequence follow one another in ``pages``. In the shapes, ``tokens`` is the number of token slots that the tile has
    for each sequence, and a row is a sequence.

    rows: the tile's sequences, as a slice of the call's sequences in the order of ``rows.Rows``.
    seq_lens: [rows] int32, the length of each sequence in tokens, or None if the kernel does not need lengths.
    positions: int32, each token's position in its sequence, or None if the kernel does not need positions. The shape is
    [1, tokens], or [rows, tokens] with a sliding window.
    hidden: [rows, tokens] bool, True for a token slot past the end of its sequence or before its window. ``hidden`` is
    None if the tile has no such slots, or if they are just the last ``Tile.tail`` slots of its only sequence.
    pages: [items, pages of an item] int32, the number of each page's cache block, or 0 for a page without a token.
    """

    rows: slice
    tile: Tile
    seq_lens: torch.Tensor | None
    positions: torch.Tensor | None
    hidden: torch.Tensor | None
    pages: torch.Tensor


def longest_length(call: Call, page: int) -> int:
    """Return the upper bound of the sequence lengths of a call, in tokens.

    The length is the smaller of ``max_seq_len`` and the number of tokens that a row of the block table can address.
    """
    return min(call.max_seq_len, call.block_tables.shape[1] * page)


def clamped_seq_lens(call: Call, page: int) -> torch.Tensor:
    """Return the sequence lengths of a call, [seqs] int32, clamped on the device to the range from 0 to
    ``longest_length``.
    """
    return call.seq_lens.clamp(0, longest_length(call, page))


def segment(
    call: Call, rows: Rows, first: int, tile: Tile, partition: int, page: int, positions: bool = False
) -> Segment:
    """Make the ``Segment`` of ``tile``. The tile's first sequence is number ``first`` of ``rows``.

    Block table entries past a sequence's last page are replaced by block 0.

    partition, page: the number of tokens in a partition and in a page.
    positions: whether the kernel needs positions and sequence lengths even if no slot of the tile is hidden.
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
    """Set exp_sums to 0 and max_logits to -inf in partition ``start`` and all later partitions.

    The function does nothing if ``scratch`` is None.
    """
    if scratch is not None and start < scratch.exp_sums.shape[2]:
        scratch.exp_sums[:, :, start:].zero_()
    if scratch is not None and start < scratch.max_logits.shape[2]:
        scratch.max_logits[:, :, start:].fill_(float("-inf"))
