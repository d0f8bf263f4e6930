"""Divides a call with a sliding window into tiles, that is, groups of partitions that the kernel processes together.

In a window of W tokens, the query at position q attends to the keys at positions q - W + 1 to q. A window touches at
most ceil((W - 1) / P) + 1 partitions, where P is the number of tokens in a partition. The kernel processes only as many
partitions of each sequence as a window can touch. The device computes the first processed partition of each sequence,
so the host needs no sequence lengths. The work is proportional to the window, not to the sequence length.
"""

from __future__ import annotations

import torch

from ..call import Call, Segment, clamped_seq_lens, longest_length
from ..lengths import fitted
from ..workers.shares import Shares
from .rows import Rows
from .tiling import Budget, Tile, Tiling, partitions_reached


class WindowRows(Rows):
    """The sequences of a call that has a sliding window, in the call's order.

    starts: the position of the first token in each sequence's window, [seqs, 1] int32.
    firsts: the number of the first partition that the kernel processes in each sequence, [seqs, 1] int32.
    latest: the upper bound of ``firsts``, chosen so that all processed partitions begin before max_seq_len.
    """

    def __init__(self, seq_lens: torch.Tensor, window: int, partition: int, latest: int) -> None:
        super().__init__(seq_lens, ordered=False)
        self.starts = (seq_lens - window).clamp_min_(0).unsqueeze(1)
        self.firsts = torch.div(self.starts, partition, rounding_mode="floor").clamp_max_(latest)


def window_rows(
    call: Call, budget: Budget, shares: Shares, partition: int, page: int, window: int
) -> tuple[Tiling, WindowRows]:
    """Divide a call that has a sliding window into tiles, and locate the window of each sequence.

    A tile is a group of partitions that the kernel processes together.

    budget, shares: the memory limits, as in ``lengths.cut``.
    partition, page, window: the number of tokens in a partition, in a page and in the window.
    """
    longest = longest_length(call, page)
    reached = partitions_reached(longest, partition, window)
    lengths = (min(longest, reached * partition),) * call.query.shape[0]
    tiling = fitted(call, budget, shares, lengths, partition, page, known=False)
    latest = -(-longest // partition) - reached
    return tiling, WindowRows(clamped_seq_lens(call, page), window, partition, latest)


def window_segment(call: Call, rows: WindowRows, first: int, tile: Tile, partition: int, page: int) -> Segment:
    """Compute the token positions, the mask and the cache block numbers of a tile, for a call that has a sliding
    window.

    A tile is a group of partitions that the kernel processes together. ``tile.parts`` numbers the partitions of each
    sequence from ``rows.firsts``, the first partition that the kernel processes. The function replaces block table
    entries before the window and past the end of the sequence by block 0.

    first: the number of the tile's first sequence.
    partition, page: the number of tokens in a partition and in a page.
    """
    taken, whole = slice(first, first + tile.rows), partition // page
    start = tile.parts.start * partition
    tokens = ((tile.num_parts - 1) * whole + tile.pages) * page
    relative = torch.arange(start, start + tokens, dtype=torch.int32, device=call.query.device)
    positions = torch.add(relative, rows.firsts[taken], alpha=partition)  # [rows, tokens]
    seq_lens = rows.seq_lens[taken]
    hidden = torch.ge(positions, seq_lens.unsqueeze(1)).logical_or_(positions < rows.starts[taken])
    begins = positions[:, ::page]  # [rows, pages]
    columns = torch.div(begins, page, rounding_mode="floor").clamp_max_(call.block_tables.shape[1] - 1)
    table = torch.gather(call.block_tables[taken], 1, columns.long())
    away = torch.ge(begins, seq_lens.unsqueeze(1)).logical_or_(begins <= rows.starts[taken] - page)
    return Segment(taken, tile, seq_lens, positions, hidden, table.masked_fill_(away, 0).view(-1, tile.pages))


def write_window_scratch(
    call: Call, rows: WindowRows, part: Segment, m: torch.Tensor, z: torch.Tensor, o: torch.Tensor
) -> None:
    """Write the softmax results of some partitions to the scratch tensors: max_logits = m, exp_sums = z, tmp_out = o /
    z.

    The function does nothing if the call has no scratch tensors.

    In the shapes, rows is the number of sequences, and heads is the number of query heads.

    part: the sequences and partitions that the function writes.
    m: the maximum score of each partition, [rows, partitions, heads] float32.
    z: the sum of e^(score - m) over the tokens of each partition, [rows, partitions, heads] float32.
    o: the sum of e^(score - m) times the V vector of each token, [rows, partitions, heads, head size] float32.
    """
    if call.scratch is None:
        return
    parts = torch.arange(part.tile.parts.start, part.tile.parts.stop, device=m.device)
    index = torch.add(rows.firsts[part.rows], parts).unsqueeze(1).expand(-1, m.shape[2], -1)  # [rows, heads, parts]
    exp_sums, max_logits, tmp_out = (tensor[part.rows] for tensor in call.scratch)
    max_logits.scatter_(2, index, m.transpose(1, 2))
    exp_sums.scatter_(2, index, z.transpose(1, 2))
    own = torch.div(o, z.unsqueeze(-1)).transpose(1, 2).to(tmp_out.dtype)
    tmp_out.scatter_(2, index.unsqueeze(-1).expand_as(own), own)
