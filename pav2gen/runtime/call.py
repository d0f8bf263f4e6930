"""The arguments of one call as every kernel receives them, after the operator has checked them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .rows import Rows
from .tiling import Tile


class BlockSparse(NamedTuple):
    """vLLM's block-sparse pattern: each head attends its local blocks and every ``vert_stride``-th block."""

    local_blocks: int
    vert_stride: int
    block_size: int
    head_sliding_step: int
    tp_rank: int


class Scratch(NamedTuple):
    """The caller's scratch: exp_sums and max_logits [seqs, heads, P] float32, tmp_out [seqs, heads, P, head size]."""

    exp_sums: torch.Tensor
    max_logits: torch.Tensor
    tmp_out: torch.Tensor


class Call(NamedTuple):
    """A checked call. Shapes: the docstring of ``paged_attention_v2``.

    read_lengths: whether the host may read ``seq_lens`` (see ``lengths.host_lengths``). If not, a call takes as long as
    with sequences of ``max_seq_len`` tokens each.
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
    """One scale, or one for each KV head, shaped to multiply a tensor [..., kv heads, and ``dims`` more dimensions]."""
    return scale.view(-1, *(1,) * dims) if isinstance(scale, torch.Tensor) else scale


class Segment(NamedTuple):
    """The tokens of a tile. Its items are flattened, sequence by sequence.

    rows: its sequences. tile: its place in the call.
    seq_lens: [rows] int32. positions: [1, tokens] int32, of the tokens of ``tile.parts``.
    hidden: [rows, tokens] bool, True where a slot holds no token; None where every slot holds one.
    pages: [items, pages] int32, block numbers; 0 for a page without a token.
    """

    rows: slice
    tile: Tile
    seq_lens: torch.Tensor
    positions: torch.Tensor
    hidden: torch.Tensor | None
    pages: torch.Tensor

    def past_end(self) -> torch.Tensor:
        """[rows, tokens] int32: position minus sequence length; -1 for the last token."""
        return self.positions - self.seq_lens.unsqueeze(1)


def longest_length(call: Call, page: int) -> int:
    """The most tokens of a sequence: ``max_seq_len``, and no more than the block table can hold."""
    return min(call.max_seq_len, call.block_tables.shape[1] * page)


def clamped_seq_lens(call: Call, page: int) -> torch.Tensor:
    """[seqs] int32: lengths within [0, longest_length], clamped on the device."""
    return call.seq_lens.clamp(0, longest_length(call, page))


def segment(call: Call, rows: Rows, first: int, tile: Tile, partition: int, page: int) -> Segment:
    """The tokens and pages of ``tile``, which begins at sequence ``first`` of ``rows``.

    Entries of the block table past a sequence's last page become page 0.
    """
    taken, whole = slice(first, first + tile.rows), partition // page
    start = tile.parts.start * whole
    stop = start + (tile.num_parts - 1) * whole + tile.pages
    positions = torch.arange(start * page, stop * page, dtype=torch.int32, device=call.query.device).unsqueeze(0)
    seq_lens = rows.seq_lens[taken]
    table = rows.take(call.block_tables[:, start:stop], taken)  # [rows, parts * pages]
    hidden = None
    if tile.padded:
        table = torch.constant_pad_nd(table, (0, stop - start - table.shape[1]))
    if tile.masked:
        hidden = positions >= seq_lens.unsqueeze(1)
        table = table.masked_fill(hidden[:, ::page], 0)
    elif not rows.ordered:
        table = table.clone(memory_format=torch.contiguous_format)
    return Segment(taken, tile, seq_lens, positions, hidden, table.view(-1, tile.pages))


def clear_scratch(scratch: Scratch | None, start: int) -> None:
    """exp_sums = 0 and max_logits = -inf from partition ``start`` on, if there are any."""
    if scratch is not None and start < scratch.exp_sums.shape[2]:
        scratch.exp_sums[:, :, start:].zero_()
    if scratch is not None and start < scratch.max_logits.shape[2]:
        scratch.max_logits[:, :, start:].fill_(float("-inf"))


def write_scratch(call: Call, rows: Rows, part: Segment, m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> None:
    """max_logits = m, exp_sums = z and tmp_out = o / z of a segment's partitions, if there is a scratch.

    m and z: [rows, parts, heads]; o: [rows, parts, heads, head size], not divided by z.
    """
    if call.scratch is None:
        return
    exp_sums, max_logits, tmp_out = (tensor[:, :, part.tile.parts] for tensor in call.scratch)
    rows.put(max_logits, part.rows, m.transpose(1, 2))
    rows.put(exp_sums, part.rows, z.transpose(1, 2))
    rows.put_quotient(tmp_out, part.rows, o.transpose(1, 2), z.transpose(1, 2))
