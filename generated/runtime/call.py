"""The arguments of one call, after the operator has checked them: what every kernel receives."""

from __future__ import annotations

from typing import NamedTuple

import torch


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
    """A checked call. Shapes: design of the operator, in the docstring of ``op.paged_attention_v2``."""

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


class Segment(NamedTuple):
    """Some sequences by some partitions of a call, flattened to items, sequence by sequence.

    past: [items, partition] int32, position minus sequence length: negative where there is a token.
    hidden: [items, partition] bool, where there is none. pages: [items, pages] int32, 0 where there is none.
    """

    rows: slice
    parts: slice
    seq_lens: torch.Tensor
    past: torch.Tensor
    hidden: torch.Tensor
    pages: torch.Tensor

    @property
    def items(self) -> int:
        """The number of items: sequences times partitions."""
        return self.hidden.shape[0]


def clamped_seq_lens(call: Call, page: int) -> torch.Tensor:
    """[seqs] int32: lengths within [0, min(max_seq_len, what the block table can hold)], clamped on the device."""
    return call.seq_lens.clamp(0, min(call.max_seq_len, call.block_tables.shape[1] * page))


def segment(call: Call, seq_lens: torch.Tensor, rows: slice, parts: slice, partition: int, page: int) -> Segment:
    """The tokens and pages of a segment. Entries of the block table past a sequence's last page become page 0."""
    lens = seq_lens[rows]
    positions = torch.arange(
        parts.start * partition, parts.stop * partition, dtype=torch.int32, device=call.query.device
    )
    past = positions - lens.unsqueeze(1)  # [rows, tokens]
    hidden = past >= 0
    pages = partition // page
    table = call.block_tables[rows, parts.start * pages : parts.stop * pages]
    table = torch.constant_pad_nd(table, (0, past.shape[1] // page - table.shape[1]))  # [rows, parts * pages]
    table.masked_fill_(hidden[:, ::page], 0)
    return Segment(rows, parts, lens, past.view(-1, partition), hidden.view(-1, partition), table.view(-1, pages))


def write_scratch(call: Call, part: Segment, m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> None:
    """max_logits = m, exp_sums = z and tmp_out = o / z of a segment's partitions, if there is a scratch.

    m and z: [rows, parts, heads]; o: [rows, parts, heads, head size], not divided by z.
    """
    if call.scratch is None:
        return
    exp_sums, max_logits, tmp_out = (tensor[part.rows, :, part.parts] for tensor in call.scratch)
    max_logits.copy_(m.transpose(1, 2))
    exp_sums.copy_(z.transpose(1, 2))
    torch.div(o, z.unsqueeze(-1), out=tmp_out.transpose(1, 2))
