"""Splits the query rows of an extend call into query tiles, so that the workspace of a PyTorch kernel stays bounded.

A row is one query token. A *query tile* is a set of consecutive rows of one sequence. A kernel reads the keys and
values to which a query tile attends once, for all its rows and heads. ``attention.tiling`` treats each query tile like
a sequence of a decode call: it splits the tokens up to the query tile's last row into partitions, and forms tiles, each
a rectangle of query tiles and partitions.

A *group* is a set of query tiles that are padded to the same width (number of rows). The split into query tiles depends
only on values that the host knows:

* The host knows the values of ``query_start_loc`` and ``seq_lens``. Query tiles of similar width form a group, which
  has the width of its widest query tile. Padding is used only where it costs less time than one more group. A query
  tile is treated like a sequence that ends at its last row.
* The host knows only upper bounds of the values of ``query_start_loc`` and ``seq_lens``. All query tiles form one
  group, and each query tile is treated like a sequence of the maximum length. The host knows only an upper bound of the
  number of query tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ..attention.tiling import Budget, Tile, Tiling, partitions_reached

if TYPE_CHECKING:
    import torch

#: The bound ``ExtendBudget.wide`` applies only to query tiles with more than this number of rows. For narrower query
#: tiles, fewer and larger tiles (see ``attention.tiling``) are faster, because part of the time of a tile is fixed.
NARROW = 16

#: The least number of elements that torch gives to each CPU thread when it copies a tensor with several threads. torch
#: calls it ``at::internal::GRAIN_SIZE``.
GRAINS_OF_A_THREAD = 32768


class Shape(NamedTuple):
    """The sizes of a kernel and a call on which the split into query tiles depends.

    kv_heads: the number of KV heads.
    keys: the number of tokens in a partition.
    page: the number of tokens in a page.
    window: the number of tokens in the sliding window, or None if there is no window.
    """

    kv_heads: int
    keys: int
    page: int
    window: int | None = None


class QueryTile(NamedTuple):
    """A set of consecutive query rows of one sequence.

    sequence: the number of the sequence in the call. first: the index of the first row in the call's query. rows: the
    number of rows. position: the first row's position in the sequence. The position is negative only if the sequence
    has more query rows than tokens according to ``seq_lens``.
    """

    sequence: int
    first: int
    rows: int
    position: int

    def begin(self, shape: Shape) -> int:
        """The first position of the partition in which the first row's sliding window begins, or 0 without a window."""
        if shape.window is None:
            return 0
        return max(0, self.position + 1 - shape.window) // shape.keys * shape.keys

    def tokens(self, shape: Shape) -> int:
        """The number of tokens of the sequence from position ``begin(shape)`` to that of the last row, inclusive."""
        return max(0, self.position + self.rows - self.begin(shape))

    def attended_by_all(self, shape: Shape) -> int:
        """The number of tokens at the start of the sequence that need no mask, because all rows attend to them.

        With a sliding window, the result is always 0, because the mask then covers all tokens.
        """
        return max(0, self.position + 1) if shape.window is None else 0


class Group(NamedTuple):
    """Query tiles that are processed together, padded to the same width.

    width: the number of rows of each query tile. A query tile with fewer rows repeats its last row.
    tiles: the query tiles in the order in which ``tiling`` numbers them. ``tiles`` is None if the host does not know
    the query tiles. The call's device then computes the query tiles.
    number: the number of query tiles, or an upper bound of this number if ``tiles`` is None.
    tiling: all tiles of the group. Each query tile takes the place of a sequence in ``attention.tiling``.
    """

    width: int
    tiles: tuple[QueryTile, ...] | None
    number: int
    tiling: Tiling

    @property
    def full(self) -> bool:
        """Whether every query tile is known to have exactly ``width`` rows."""
        return self.tiles is not None and all(tile.rows == self.width for tile in self.tiles)


class ExtendBudget(NamedTuple):
    """The bounds of the workspace on one type of device, and the memory that a tile needs.

    All fields are in bytes, except ``width`` and ``row_padding``.

    width: the largest number of rows in a query tile.
    chunk, segment, padding, chunk_page, page: as in ``tiling.Budget``.
    wide: a second bound, besides ``segment``, for the buffers that hold the scores of one tile. This second bound
    applies if the query tiles have more than NARROW rows.
    segment_page, segment_item, row: as in ``tiling.Budget``, for a query tile with a single row.
    row_page: memory for a page in a tile's buffers, in addition to ``page``: for each row of the query tile, for all
    heads together.
    row_padding: the amount of padding with repeated rows that takes as long to process as one more tile. The unit is
    one row × one page × one KV head.
    """

    width: int
    chunk: int
    segment: int
    wide: int
    padding: int
    row_padding: int
    chunk_page: int
    page: int
    row_page: int
    segment_page: int
    segment_item: int
    row: int

    def of(self, width: int) -> Budget:
        """Convert these bounds to a budget of ``attention.tiling`` for query tiles of ``width`` rows.

        A page of padding takes more time in wider query tiles, so the budget of wider query tiles accepts less padding.
        """
        return Budget(
            chunk=self.chunk,
            segment=self.segment if width <= NARROW else min(self.segment, self.wide),
            padding=self.padding * self.row_padding // (self.row_padding + width * self.padding // self.chunk_page),
            chunk_page=self.chunk_page,
            segment_page=width * self.segment_page,
            segment_item=width * self.segment_item,
            page=self.page + width * self.row_page,
            row=width * self.row,
        )

    def widest(self, shape: Shape, max_query_len: int) -> int:
        """The largest number of rows that a query tile may have.

        With this number, the buffers for one partition of the query tile stay within the bounds ``segment`` and
        ``wide`` in bytes. The result is at least 1. The width is at most the field ``width``, and at most
        ``max_query_len``.
        """
        pages, heads = shape.keys // shape.page, shape.kv_heads
        each = pages * self.row_page + heads * (pages * self.segment_page + self.segment_item + self.row)
        return max(1, min(self.width, max_query_len, (min(self.segment, self.wide) - pages * self.page) // each))

    def fit(
        self, starts: Sequence[int], seq_lens: Sequence[int], shape: Shape, max_query_len: int
    ) -> tuple[Group, ...]:
        """Split the rows of a call into groups of query tiles, if the host knows ``query_start_loc`` and ``seq_lens``.

        Only the first ``max_query_len`` rows of each sequence are included.

        starts: the values of query_start_loc: the first row of each sequence, then the end of the last sequence. A
        sequence owns no rows if the next value is not larger.
        seq_lens: the length of each sequence in tokens, new tokens included. The lengths must not be negative.
        """
        return _fit(self, tuple(starts), tuple(seq_lens), shape, max_query_len)

    def bound(self, tokens: int, num_seqs: int, longest: int, shape: Shape, max_query_len: int) -> Group:
        """Make one group of all query tiles of a call, if the host does not know ``query_start_loc`` and ``seq_lens``.

        tokens: the number of rows of the query. longest: an upper bound of the sequence lengths, in tokens.
        max_query_len: an upper bound of the rows that are computed for each sequence.
        """
        width = self.widest(shape, max_query_len)
        count = min((tokens + num_seqs * (width - 1)) // width, num_seqs * _ceil(max_query_len, width))
        window = shape.window and shape.window + width - 1  # the windows of all rows of a query tile together
        reached = shape.keys * partitions_reached(longest, shape.keys, window)
        lengths = (min(longest, reached),) * count
        tiling = self.of(width).fit(lengths, shape.kv_heads, shape.keys, shape.page, known=False)
        return Group(width, None, count, tiling)


def copies_of(tile: Tile) -> int:
    """The number of items of a tile that get their own copy of the query and their own output of a multiplication.

    The items of a chunk are multiplied in one batch (``torch.bmm``), which needs a query and an output for each item.
    If the tile has one query tile, all its chunks use the same copies. The result is 0 if no copies are needed, because
    each query tile has a single item, or because a single query tile is processed one item at a time.
    """
    if tile.num_parts == 1 or tile.rows == tile.chunk == 1:
        return 0
    return tile.chunk if tile.rows == 1 else tile.items


def by_chunk(items: torch.Tensor, tile: Tile, heads: int) -> Sequence[torch.Tensor]:
    """Split the tensor ``items`` into one part for each chunk of ``tile``.

    items: [tile.items * heads, ...], where each chunk has elements of its own. Or [tile.chunk * heads, ...]: memory for
    one chunk, which all chunks reuse in turn. A shorter last chunk then uses the first part of this memory.
    heads: the number of KV heads.
    """
    size, total = tile.chunk * heads, tile.items * heads
    if items.shape[0] == total:
        return tuple(items.split(size))
    whole, rest = divmod(total, size)
    return (items,) * whole + (items[:rest],) * (rest > 0)


def gathers_items(tile: Tile, page_grains: int) -> bool:
    """Whether a kernel on a CPU should copy the values (V) from the cache item by item, in the order of the tokens.

    If the result is False, the kernel copies the pages of a whole chunk, and puts their elements in order in a second
    pass. The second way is faster if an item is too small for two threads, because torch gives each thread at least
    GRAINS_OF_A_THREAD grains. A grain is 8 or 16 bytes that are copied as one element.

    page_grains: the number of grains in the values of a page, for all KV heads together.
    """
    return tile.pages > 1 and tile.pages * page_grains >= 2 * GRAINS_OF_A_THREAD


@lru_cache(maxsize=256)
def _fit(
    budget: ExtendBudget, starts: tuple[int, ...], seq_lens: tuple[int, ...], shape: Shape, max_query_len: int
) -> tuple[Group, ...]:
    owned = [max(stop - start, 0) for start, stop in pairwise(starts)]
    counts = [min(rows, max_query_len) for rows in owned]
    width = budget.widest(shape, max(1, *counts))
    tiles = [
        tile
        for s, (start, count, rows, length) in enumerate(zip(starts, counts, owned, seq_lens))
        for tile in _query_tiles(s, start, count, length - rows, width)
    ]
    spare = budget.row_padding // shape.kv_heads
    return tuple(_group(budget, members, shape) for members in _of_similar_width(tiles, shape, spare))


def _query_tiles(sequence: int, start: int, count: int, position: int, width: int) -> Iterator[QueryTile]:
    """Split ``count`` rows of a sequence evenly into query tiles of at most ``width`` rows.

    start: the index of the first of these rows in the call's query. position: this row's position in the sequence.
    """
    if count:
        step = _ceil(count, _ceil(count, width))
        for first in range(0, count, step):
            yield QueryTile(sequence, start + first, min(step, count - first), position + first)


def _of_similar_width(tiles: Sequence[QueryTile], shape: Shape, spare: int) -> Iterator[list[QueryTile]]:
    """Split query tiles into groups of similar width. The first group has the widest query tiles.

    spare: the largest padding that a group may have. The unit is one row × one page.
    """
    group: list[QueryTile] = []
    wasted = 0
    for tile in sorted(tiles, key=lambda tile: -tile.rows):
        wasted += (group[0].rows - tile.rows) * _ceil(tile.tokens(shape), shape.page) if group else 0
        if wasted > spare:
            yield group
            group, wasted = [], 0
        group.append(tile)
    if group:
        yield group


def _group(budget: ExtendBudget, tiles: Sequence[QueryTile], shape: Shape) -> Group:
    """Make a group of ``tiles``. In the group, the query tiles with the most tokens come first."""
    ordered = sorted(tiles, key=lambda tile: -tile.tokens(shape))
    width = max(tile.rows for tile in tiles)
    tiling = budget.of(width).fit(
        [tile.tokens(shape) for tile in ordered],
        shape.kv_heads,
        shape.keys,
        shape.page,
        known=True,
        attended=[tile.attended_by_all(shape) for tile in ordered],
    )
    return Group(width, tuple(ordered), len(ordered), tiling)


def _ceil(total: int, step: int) -> int:
    return -(-total // step)
