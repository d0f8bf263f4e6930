"""Computes the index tensors of the PyTorch extend kernels on the device of the call.

The tensors hold the query rows of each query tile, and the keys and pages to which these query rows attend. A query
tile is a set of consecutive query rows of one sequence. A group is a set of query tiles that are padded to the same
width, that is, to the same number of query rows.

To fill the width of its group, a query tile repeats its last query row. All copies of a query row get the same result,
so a kernel can write the copies to the output in any order.

An empty query tile is a query tile without query rows. A group can end with empty query tiles if the host does not know
the sequence lengths. A row tile is the set of query tiles that a kernel processes together. An empty query tile repeats
the query rows of the last non-empty query tile in the same row tile. If all query tiles of a row tile are empty, the
kernel overwrites elements of ``out`` and ``lse`` with their old values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..attention.state import LOG2_E, SMALLEST, State, with_sink
from ..attention.tiling import Tile
from ..lengths import host_lengths
from .call import ExtendCall
from .tiles import ExtendBudget, Group, Shape


class Taken(NamedTuple):
    """The query tiles that a kernel processes together, as tensors on the call's device.

    In the shapes below, ``width`` is the number of query rows of each query tile, repeated query rows included.

    sequences: [query tiles] int64, the index of the sequence of each query tile.
    rows: [query tiles, width] int64, the index of each query row in the first dimension of ``call.query``.
    places: [query tiles * width] int64, the index of the result to write to each element of ``rows``, or None if the
    host knows that no query row is repeated. All copies of a query row have the same index in ``places``.
    some: [1] bool, whether at least one of these query tiles has a query row, or None if the host knows that all query
    tiles have query rows.
    queries: [query tiles, width] int32, the position of each query row in its sequence.
    seq_lens: [query tiles] int32, the length of each query tile's sequence in tokens, new tokens included.
    ends: [query tiles, 1] int32, the number of tokens of the sequence up to and including the last query row of the
    query tile, or 0 if the query tile has no query rows.
    starts: [query tiles, 1] int32, the first position in the sliding window of the query tile's first query row, or
    None for a kernel without a sliding window.
    """

    sequences: torch.Tensor
    rows: torch.Tensor
    places: torch.Tensor | None
    some: torch.Tensor | None
    queries: torch.Tensor
    seq_lens: torch.Tensor
    ends: torch.Tensor
    starts: torch.Tensor | None

    def put(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Write the results for all query rows of these query tiles to ``target``.

        target: ``out`` or ``lse`` of the call, [query rows of the call, ...].
        values: the results, [query tiles * width, ...] in the dtype of ``target``.
        """
        rows = self.rows.flatten()
        if self.places is not None:
            values = torch.index_select(values, 0, self.places)
        if self.some is not None:
            some = self.some.view(-1, *(1,) * (target.dim() - 1))
            values = torch.where(some, values, torch.index_select(target, 0, rows))
        target.index_copy_(0, rows, values)


class Part(NamedTuple):
    """The positions of the keys in ``tile``, and the cache blocks that a kernel reads for ``tile``.

    A tile is some partitions of each of several query tiles (see ``attention.tiling``). An item is one partition of one
    query tile. The items of a query tile are consecutive. In the shapes below, ``tokens`` is the number of tokens that
    the partitions of the tile can hold for one query tile. ``width`` is the number of query rows of each query tile.

    queries, seq_lens: the tensors of the same names in ``Taken``, but only for the query tiles in ``tile``.
    positions: [1 or query tiles, tokens] int32, the position of each key in its sequence. The first dimension of
    ``positions`` is 1 if all query tiles have the same positions.
    hidden: [query tiles, partitions, 1, width, 1, tokens / partitions] bool, True where a query row does not attend to
    a key, or None if every query row attends to every key.
    unread: [query tiles, tokens] bool, True for a key to which no query row of the query tile attends, or None if
    ``hidden`` is None.
    pages: [items, pages of an item] int32, the number of the cache block that holds each page, or 0 for a page to which
    no query row of the query tile attends.
    """

    tile: Tile
    queries: torch.Tensor
    seq_lens: torch.Tensor
    positions: torch.Tensor
    hidden: torch.Tensor | None
    unread: torch.Tensor | None
    pages: torch.Tensor


def groups_of(call: ExtendCall, budget: ExtendBudget, shape: Shape) -> tuple[Group, ...]:
    """Split the query rows of a call into groups of query tiles.

    If the host may read the values of ``query_start_loc`` and ``seq_lens``, the split depends on these values. The
    function reads values from a GPU only if the split without them could cause so much padding that the read is faster.
    If the function does not read the values, the split depends on upper bounds that the host knows.

    budget: the bounds of the workspace on the call's device.
    """
    tokens, seqs = call.query.shape[0], call.seq_lens.shape[0]
    bound = budget.bound(tokens, seqs, call.max_seq_len, shape, call.max_query_len)
    if call.read_lengths:
        pages = bound.number * -(-call.max_seq_len // shape.page)
        worthwhile = pages > budget.of(bound.width).spare_pages(shape.kv_heads)
        starts = host_lengths(call.query_start_loc, worthwhile, "query_start_loc")
        seq_lens = host_lengths(call.seq_lens, worthwhile)
        if starts is not None and seq_lens is not None:
            starts = tuple(min(max(start, 0), tokens) for start in starts)
            lengths = [min(max(length, 0), call.max_seq_len) for length in seq_lens]
            return budget.fit(starts, lengths, shape, call.max_query_len)
    return (bound,)


class QueryRows:
    """The query tiles of a group, as tensors on the call's device.

    sequences: [query tiles] int64, the index of the sequence of each query tile.
    firsts: [query tiles] int64, the index in ``call.query`` of the first query row of each query tile.
    counts: [query tiles] int64, the number of query rows of each query tile, without repeated query rows.
    positions: [query tiles] int64, the position of each query tile's first query row in its sequence, or -1 if the
    query tile has no query rows.
    total: [1] int64, the number of query tiles that have query rows, or None if the host knows that all query tiles
    have query rows.
    """

    def __init__(self, call: ExtendCall, group: Group, shape: Shape) -> None:
        self.call, self.group, self.shape = call, group, shape
        self.seq_lens = call.seq_lens.clamp(0, call.max_seq_len)
        self.total: torch.Tensor | None = None
        if group.tiles is None:
            self._find()
        else:
            table = torch.tensor(group.tiles, dtype=torch.int64).to(call.query.device)
            self.sequences, self.firsts, self.counts, self.positions = table.unbind(1)

    def _find(self) -> None:
        """Compute the tensors of this class on the call's device, from ``query_start_loc`` and ``seq_lens``."""
        call, width, tokens = self.call, self.group.width, self.call.query.shape[0]
        starts = call.query_start_loc.long().clamp_(0, tokens)
        owned = torch.sub(starts[1:], starts[:-1]).clamp_min_(0)  # [seqs], rows of each sequence
        rows = owned.clamp(max=call.max_query_len)  # [seqs], those that the call computes
        tiles = torch.div(rows + (width - 1), width, rounding_mode="floor")
        ends = torch.cumsum(tiles, 0)  # [seqs]
        self.total = ends[-1:]
        number = torch.arange(self.group.number, device=starts.device)
        self.sequences = torch.searchsorted(ends, number, right=True).clamp_max_(rows.shape[0] - 1)
        before = torch.sub(number, torch.sub(ends, tiles).index_select(0, self.sequences)).mul_(width)
        rows_here = rows.index_select(0, self.sequences)
        self.counts = torch.sub(rows_here, before).clamp_(0, width)
        self.firsts = starts[:-1].index_select(0, self.sequences).add_(before).clamp_max_(tokens - 1)
        contexts = torch.sub(self.seq_lens, owned).index_select(0, self.sequences)
        self.positions = contexts.add_(before).masked_fill_(self.counts == 0, -1)

    def take(self, taken: slice) -> Taken:
        """Compute the tensors that describe some query tiles of the group.

        taken: the indices of these query tiles in the group, as a slice.
        """
        width, window = self.group.width, self.shape.window
        each = torch.arange(width, device=self.firsts.device)
        offsets = torch.minimum(each, self.counts[taken].sub(1).clamp_min_(0).unsqueeze(1))  # [query tiles, width]
        rows = torch.add(offsets, self.firsts[taken].unsqueeze(1))
        positions = self.positions[taken].unsqueeze(1)
        ends = torch.add(positions, self.counts[taken].unsqueeze(1)).clamp_min_(0).int()
        starts = None if window is None else (positions + (1 - window)).clamp_min_(0).int()
        places = some = None
        if not self.group.full:
            number = torch.arange(rows.shape[0], device=rows.device)
            if self.total is not None:  # a query tile without rows repeats the last one that has rows
                some = self.total > taken.start
                number.clamp_max_(torch.sub(self.total, taken.start + 1).clamp_min_(0))
                rows, offsets_there = rows.index_select(0, number), offsets.index_select(0, number)
            else:
                offsets_there = offsets
            places = torch.add(offsets_there, number.mul(width).unsqueeze(1)).flatten()
        return Taken(
            sequences=self.sequences[taken],
            rows=rows,
            places=places,
            some=some,
            queries=torch.add(offsets, positions).int(),
            seq_lens=self.seq_lens.index_select(0, self.sequences[taken]),
            ends=ends,
            starts=starts,
        )

    def part(self, held: Taken, tile: Tile) -> Part:
        """Compute the key positions and cache blocks of ``tile``, for a kernel without a sliding window.

        Partition 0 of each query tile begins at position 0 of the sequence.

        held: the query tiles of the row tile that contains ``tile``.
        """
        table, page = self.call.block_tables, self.shape.page
        start = tile.parts.start * self.shape.keys
        stop = start + (tile.num_parts - 1) * self.shape.keys + tile.pages * page
        positions = torch.arange(start, stop, dtype=torch.int32, device=table.device).unsqueeze(0)
        pages = torch.index_select(table[:, start // page : stop // page], 0, held.sequences[: tile.rows])
        if tile.padded:
            pages = torch.constant_pad_nd(pages, (0, (stop - start) // page - pages.shape[1]))
        hidden = unread = None
        if tile.masked:
            unread = positions >= held.ends[: tile.rows]
            pages.masked_fill_(unread[:, ::page], 0)
            hidden = self._by_part(positions, tile) > self._by_row(held, tile)
        return self._part(held, tile, positions, hidden, unread, pages)

    def window_part(self, held: Taken, tile: Tile) -> Part:
        """Compute the key positions and cache blocks of ``tile``, for a kernel with a sliding window.

        For each query tile, partition 0 is the partition in which the sliding window of its first query row begins.

        held: the query tiles of the row tile that contains ``tile``.
        """
        assert held.starts is not None and self.shape.window is not None
        table, page, keys = self.call.block_tables, self.shape.page, self.shape.keys
        start = tile.parts.start * keys
        stop = start + (tile.num_parts - 1) * keys + tile.pages * page
        starts, ends = held.starts[: tile.rows], held.ends[: tile.rows]
        firsts = torch.div(starts, keys, rounding_mode="floor")
        relative = torch.arange(start, stop, dtype=torch.int32, device=table.device)
        positions = torch.add(relative, firsts, alpha=keys)  # [query tiles, tokens]
        unread = torch.ge(positions, ends).logical_or_(positions < starts)
        begins = positions[:, ::page]
        away = torch.ge(begins, ends).logical_or_(begins <= starts - page)
        columns = torch.div(begins, page, rounding_mode="floor").clamp_max_(table.shape[1] - 1)
        pages = table[held.sequences[: tile.rows].unsqueeze(1), columns.long()].masked_fill_(away, 0)
        by_part, by_row = self._by_part(positions, tile), self._by_row(held, tile)
        hidden = torch.gt(by_part, by_row).logical_or_(by_part <= by_row - self.shape.window)
        return self._part(held, tile, positions, hidden, unread, pages)

    def _by_part(self, positions: torch.Tensor, tile: Tile) -> torch.Tensor:
        """Reshape key positions so that they broadcast with ``Part.hidden``.

        positions: [n, tokens], where n is the number of query tiles, or 1 if all query tiles have the same positions.

        Returns a tensor [n, partitions, 1, 1, 1, tokens of a partition].
        """
        return positions.view(positions.shape[0], tile.num_parts, 1, 1, 1, tile.pages * self.shape.page)

    def _by_row(self, held: Taken, tile: Tile) -> torch.Tensor:
        """Reshape the positions of the query rows so that they broadcast with ``Part.hidden``.

        Returns a tensor [query tiles, 1, 1, width, 1, 1].
        """
        return held.queries[: tile.rows].view(-1, 1, 1, self.group.width, 1, 1)

    def _part(
        self,
        held: Taken,
        tile: Tile,
        positions: torch.Tensor,
        hidden: torch.Tensor | None,
        unread: torch.Tensor | None,
        pages: torch.Tensor,
    ) -> Part:
        rows = slice(0, tile.rows)
        blocks = pages.view(-1, tile.pages)
        return Part(tile, held.queries[rows], held.seq_lens[rows], positions, hidden, unread, blocks)


def write_rows(call: ExtendCall, held: Taken, state: State, found: torch.Tensor) -> None:
    """Write the attention results of the query tiles ``held`` to ``out``, and to ``lse`` if the call has an ``lse``
    tensor.

    The result in ``out`` is o / z, or zeros for a query row that attends to no key. The module ``attention.state``
    defines m, z and o, the parts of a softmax state. In the shapes below, ``width`` is the number of query rows of each
    query tile, repeated query rows included. ``group`` is the number of query heads per KV head.

    state: the softmax states of these query rows over all keys, overwritten.
    state.m: the maximum score times LOG2_E, [query tiles, kv heads, width, group] float32.
    state.z: [query tiles, kv heads, width, group] float32.
    state.o: [query tiles, kv heads, width, group, head size] float32.
    found: a buffer for o / z, [query tiles, width, kv heads, group, head size] in the dtype of ``out``.
    """
    sinks = None if call.sinks is None else call.sinks.view(state.m.shape[1], 1, -1)
    if call.sinks is not None or call.lse is not None:
        state.m.div_(LOG2_E)
    z, lse = with_sink(state, sinks, call.lse is not None)
    if call.lse is not None and lse is not None:
        held.put(call.lse, lse.permute(0, 2, 1, 3).reshape(-1, call.lse.shape[1]))
    state.o.div_(z.clamp_min_(SMALLEST).unsqueeze(-1))
    found.copy_(state.o.permute(0, 2, 1, 3, 4))
    held.put(call.out, found.view(-1, *call.out.shape[1:]))
