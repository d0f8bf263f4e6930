"""Splits the query rows of an extend call into query tiles, so that the workspace of a PyTorch kernel stays bounded.

A query row is the query of one token for all heads. A query tile is a set of consecutive query rows of one sequence. A
kernel reads the keys and values only once for all query rows and heads of a query tile. A partition is a fixed number
of consecutive keys of a sequence. A kernel processes one tile at a time, that is, some partitions of each of several
query tiles. The module ``attention.tiling`` makes the tiles.

A group is a set of query tiles that are padded to the same width, that is, to the same number of query rows. The split
into groups depends on whether the host knows the lengths of the sequences:

* If the host knows the values of ``query_start_loc`` and ``seq_lens``, each group has query tiles of similar width. The
  width of a group is the width of its widest query tile. The split accepts padding only where the padding takes less
  time than one more group.

* If the host knows only upper bounds of the lengths, all query tiles form one group, and a kernel processes each query
  tile as if its sequence had the maximum length.
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
    """The sizes that determine how the query rows of a call are split into query tiles.

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

    sequence: the index of the sequence in the call.
    first: the index of the first query row in ``query``.
    rows: the number of query rows.
    position: the position of the first query row in its sequence. ``position`` can be negative if the sequence has more
    query rows than ``seq_lens`` allows.
    """

    sequence: int
    first: int
    rows: int
    position: int

    def begin(self, shape: Shape) -> int:
        """Return the first position of the partition in which the first query row's sliding window begins.

        Without a sliding window, the result is 0.
        """
        if shape.window is None:
            return 0
        return max(0, self.position + 1 - shape.window) // shape.keys * shape.keys

    def tokens(self, shape: Shape) -> int:
        """Return the number of tokens of the sequence from position ``begin(shape)`` to the last query row.

        The number includes the token of the last query row.
        """
        return max(0, self.position + self.rows - self.begin(shape))

    def attended_by_all(self, shape: Shape) -> int:
        """Return the number of tokens at the start of the sequence that need no mask, because all query rows attend to
        them.

        With a sliding window, the result is 0, because a kernel then uses a mask for all tokens.
        """
        return max(0, self.position + 1) if shape.window is None else 0


class Group(NamedTuple):
    """A group of query tiles that a kernel processes together, padded to the same number of query rows.

    width: the number of query rows of each query tile, repeated query rows included.
    tiles: the query tiles in the order in which ``tiling`` numbers them, or None if the kernel must compute the query
    tiles on the call's device.
    number: the number of query tiles, or an upper bound of this number if ``tiles`` is None.
    tiling: the tiles of the group, as ``attention.tiling`` makes them from one sequence per query tile.
    """

    width: int
    tiles: tuple[QueryTile, ...] | None
    number: int
    tiling: Tiling

    @property
    def full(self) -> bool:
        """Whether the host knows that every query tile of the group has exactly ``width`` query rows."""
        return self.tiles is not None and all(tile.rows == self.width for tile in self.tiles)


class ExtendBudget(NamedTuple):
    """The bounds of the workspace on one type of device, and the memory that a kernel needs for each part of a tile.

    A tile is some partitions of each of several query tiles, and a chunk is a part of these partitions. All fields
    except ``width`` and ``row_padding`` are in bytes.

    width: the largest number of query rows in a query tile.
    chunk: the bound for the buffers that hold the keys, or the values, of one chunk.
    segment: the bound for the buffers that hold the attention scores of one tile.
    wide: a second bound for the buffers that hold the attention scores of one tile, for query tiles with more than
    NARROW query rows.
    padding: the amount of padding in keys and values that takes as long to process as one more tile.
    row_padding: the amount of padding with repeated query rows that takes as long to process as one more tile, as a
    product of query rows, pages and KV heads.
    chunk_page: memory for a page in the buffers of a chunk, for each KV head.
    page: memory for a page in the buffers of a tile, for all query rows and heads together.
    row_page: further memory for a page in the buffers of a tile, for each query row and for all heads together.
    segment_page: further memory for a page in the buffers of a tile, for each query row and each KV head.
    segment_item: memory for one partition of one query tile in the buffers of a tile, for each query row and each KV
    head, not including the memory for pages.
    row: memory for the softmax state of a query row, for each KV head.
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
        """Convert these bounds to a ``Budget`` of ``attention.tiling``, for query tiles of ``width`` query rows.

        A page of padding takes more time in a wider query tile, so the budget for wider query tiles allows less
        padding.
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
        """Return the largest number of query rows that a query tile may have.

        The buffers for one partition of such a query tile stay within the bounds ``segment`` and ``wide``. The result
        is at least 1, even if one query row exceeds these bounds. The result is at most ``max_query_len`` and at most
        the field ``width``.
        """
        pages, heads = shape.keys // shape.page, shape.kv_heads
        each = pages * self.row_page + heads * (pages * self.segment_page + self.segment_item + self.row)
        return max(1, min(self.width, max_query_len, (min(self.segment, self.wide) - pages * self.page) // each))

    def fit(
        self, starts: Sequence[int], seq_lens: Sequence[int], shape: Shape, max_query_len: int
    ) -> tuple[Group, ...]:
        """Split the query rows of a call into groups of query tiles, if the host knows ``query_start_loc`` and
        ``seq_lens``.

        The groups contain only the first ``max_query_len`` query rows of each sequence.

        starts: the values of ``query_start_loc``. Sequence ``s`` owns no query rows if starts[s + 1] is not larger than
        starts[s].
        seq_lens: the length of each sequence in tokens, new tokens included. The lengths must not be negative.
        """
        return _fit(self, tuple(starts), tuple(seq_lens), shape, max_query_len)

    def bound(self, tokens: int, num_seqs: int, longest: int, shape: Shape, max_query_len: int) -> Group:
        """Make one group of all query tiles of a call, if the host does not know ``query_start_loc`` and ``seq_lens``.

        tokens: the number of query rows. longest: an upper bound of the sequence lengths, in tokens. max_query_len: an
        upper bound of the number of query rows to compute for each sequence.
        """
        width = self.widest(shape, max_query_len)
        count = min((tokens + num_seqs * (width - 1)) // width, num_seqs * _ceil(max_query_len, width))
        window = shape.window and shape.window + width - 1  # the windows of all rows of a query tile together
        reached = shape.keys * partitions_reached(longest, shape.keys, window)
        lengths = (min(longest, reached),) * count
        tiling = self.of(width).fit(lengths, shape.kv_heads, shape.keys, shape.page, known=False)
        return Group(width, None, count, tiling)


def copies_of(tile: Tile) -> int:
    """Return the number of items that need their own copy of the query, where an item is one partition of one query
    tile.

    A chunk is a set of consecutive items of ``tile``. A kernel multiplies all items of a chunk in one ``torch.bmm``,
    which needs a query and an output for each item. If ``tile`` has only one query tile, all chunks use the same
    copies. The result is 0 if each query tile has only one item. The result is also 0 if ``tile`` has one query tile
    and each chunk has one item.
    """
    if tile.num_parts == 1 or tile.rows == tile.chunk == 1:
        return 0
    return tile.chunk if tile.rows == 1 else tile.items


def by_chunk(items: torch.Tensor, tile: Tile, heads: int) -> Sequence[torch.Tensor]:
    """Split the tensor ``items`` into one part for each chunk, that is, for each set of consecutive items of ``tile``.

    items: a tensor [tile.items * heads, ...] with elements for every chunk, or a tensor [tile.chunk * heads, ...] that
    all chunks use in turn. If the last chunk has fewer items than the other chunks, it gets only the first rows of the
    shared tensor.
    heads: the number of KV heads.
    """
    size, total = tile.chunk * heads, tile.items * heads
    if items.shape[0] == total:
        return tuple(items.split(size))
    whole, rest = divmod(total, size)
    return (items,) * whole + (items[:rest],) * (rest > 0)


def gathers_items(tile: Tile, page_grains: int) -> bool:
    """Return whether a kernel on a CPU should copy the values (V) of each item from the cache in the order of the
    tokens.

    An item is one partition of one query tile. If the result is False, the kernel copies the pages of several items at
    once, and puts the elements in the order of the tokens with a second copy. A copy item by item is slow if an item
    has too few grains for two CPU threads. A grain is 8 or 16 bytes that PyTorch copies as one element. PyTorch gives
    each thread at least GRAINS_OF_A_THREAD grains.

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
    """Split ``count`` query rows of a sequence evenly into query tiles of at most ``width`` query rows.

    start: the index in ``query`` of the first of these query rows. position: the position of the first of these query
    rows in its sequence.
    """
    if count:
        step = _ceil(count, _ceil(count, width))
        for first in range(0, count, step):
            yield QueryTile(sequence, start + first, min(step, count - first), position + first)


def _of_similar_width(tiles: Sequence[QueryTile], shape: Shape, spare: int) -> Iterator[list[QueryTile]]:
    """Split query tiles into groups in which the query tiles have similar numbers of query rows.

    The function yields the groups in order of width, widest first.

    spare: the largest padding that a group may have, as a product of query rows and pages.
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
    """Make a group of the query tiles ``tiles``, sorted by number of tokens, largest first."""
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
