"""Computes, on the call's device, which rows each query tile has, and to which tokens and pages these rows attend.

A row is one query token. The module ``tiles`` defines query tiles, groups and the width of a group. A query tile with
fewer rows than the width of its group repeats its last row. All copies of that row get the same result, so the order in
which the copies are written does not matter. If the host does not know the lengths of the sequences, the query tiles at
the end of a group may have no rows. A query tile without rows repeats the rows of the last query tile of the same row
tile (see ``attention.tiling``) that has rows. If no query tile of a row tile has rows, elements of ``out`` and ``lse``
are overwritten with the values that they already have.
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
    """The query tiles that one row tile processes (see ``attention.tiling``), as tensors on the call's device.

    Below, ``width`` is the number of rows of each query tile, repeated rows included.

    sequences: [query tiles] int64, the sequence of each query tile.
    rows: [query tiles, width] int64, the index of each row in the query.
    places: [query tiles * width] int64, for each row the index of the result that is written to this row. The index
    counts the results of all query tiles together. All copies of a row have the same index. ``places`` is None if the
    host knows that no row is repeated.
    some: [1] bool, whether at least one of these query tiles has a row. ``some`` is None if the host knows that each
    query tile has rows.
    queries: [query tiles, width] int32, the position of each row in its sequence.
    seq_lens: [query tiles] int32, the length of each query tile's sequence in tokens, new tokens included.
    ends: [query tiles, 1] int32, the number of tokens of the sequence up to and including the last row of the query
    tile, or 0 if the query tile has no rows.
    starts: [query tiles, 1] int32, the first position in the sliding window of the query tile's first row. ``starts``
    is None if the kernel has no sliding window.
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
        """Write the results of all rows of these query tiles to ``target``.

        target: the call's ``out`` or ``lse``. Its first dimension has an element for each row of the call's query.
        values: the results, in the dtype of ``target``. The first dimension has query tiles * width elements. The other
        dimensions are those of ``target``.
        """
        rows = self.rows.flatten()
        if self.places is not None:
            values = torch.index_select(values, 0, self.places)
        if self.some is not None:
            some = self.some.view(-1, *(1,) * (target.dim() - 1))
            values = torch.where(some, values, torch.index_select(target, 0, rows))
        target.index_copy_(0, rows, values)


class Part(NamedTuple):
    """The positions of the keys in a tile (see ``attention.tiling``), and the cache blocks that the tile reads.

    An item is one partition of one query tile. The items of a query tile are consecutive. Below, ``tokens`` is the
    number of tokens that the partitions of ``tile`` can hold together, for one query tile.

    queries, seq_lens: as in ``Taken``, but only for the query tiles in ``tile``.
    positions: [1 or query tiles, tokens] int32, the position of each key in its sequence. The first dimension is 1 if
    the positions are the same for all query tiles.
    hidden: [query tiles, partitions, 1, width, 1, tokens / partitions] bool, True where a row does not attend to a
    key. width is the number of rows of each query tile. ``hidden`` is None if every row attends to every key.
    unread: [query tiles, tokens] bool, True for a key to which no row of the query tile attends. ``unread`` is None if
    ``hidden`` is None.
    pages: [items, pages of an item] int32, the number of the cache block that holds each page, or 0 for a page to which
    no row of the query tile attends.
    """

    tile: Tile
    queries: torch.Tensor
    seq_lens: torch.Tensor
    positions: torch.Tensor
    hidden: torch.Tensor | None
    unread: torch.Tensor | None
    pages: torch.Tensor


def groups_of(call: ExtendCall, budget: ExtendBudget, shape: Shape) -> tuple[Group, ...]:
    """Split the rows of a call into groups of query tiles.

    The split uses the values of ``query_start_loc`` and ``seq_lens`` if the host may read them, and if the padding that
    upper bounds of these values cause could take longer than the read. Otherwise the split uses the upper bounds.

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

    sequences: [query tiles] int64, the sequence of each query tile.
    firsts: [query tiles] int64, the index in ``call.query`` of the first row of each query tile.
    counts: [query tiles] int64, the number of rows of each query tile, without repeated rows.
    positions: [query tiles] int64, the position in its sequence of the first row of each query tile, or -1 if the query
    tile has no rows.
    total: [1] int64, the number of query tiles that have rows. ``total`` is None if the host knows that all have rows.
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
        """Compute the rows of some query tiles of the group.

        taken: the numbers of these query tiles in the group, as a slice.
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

        Partition 0 begins at position 0 of the sequence. held: the query tiles of the row tile to which ``tile``
        belongs.
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

        For each query tile, partition 0 is the partition in which the window of its first row begins. held: the query
        tiles of the row tile to which ``tile`` belongs.
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
        The result is [n, partitions, 1, 1, 1, tokens of a partition].
        """
        return positions.view(positions.shape[0], tile.num_parts, 1, 1, 1, tile.pages * self.shape.page)

    def _by_row(self, held: Taken, tile: Tile) -> torch.Tensor:
        """The positions of the rows, reshaped to [query tiles, 1, 1, width, 1, 1] to broadcast with ``Part.hidden``."""
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
    """Write the rows of the query tiles ``held`` to ``out``: o / z, or zeros for a row that attends to no token.

    The module ``attention.state`` defines m, z and o. If the call has an ``lse`` tensor, it gets the rows too.
    Below, ``width`` is the number of rows of each query tile, repeated rows included, and ``group`` is the number of
    query heads per KV head.

    state: the softmax states of these rows, over all keys. m and z are float32 [query tiles, kv heads, width, group]. o
    is float32 [query tiles, kv heads, width, group, head size]. In this function, m is the maximum score times LOG2_E.
    All three tensors are overwritten.
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
