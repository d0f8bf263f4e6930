"""Cuts the query rows of an extend call into query tiles, and these into work that stays within a workspace.

A *query tile* is a run of rows of one sequence. The kernel reads the keys and values of a query tile once for all its
rows and heads. It treats a query tile as ``runtime.tiling`` treats a sequence of decode: the tokens up to the last row
are cut into partitions, and tiles of scores cover several query tiles by several partitions.

A *group* is the query tiles of one width. The cut follows from host values alone:

* Known lengths. Query tiles have only rows of their sequence. Those of similar width form a group, which is as wide as
  its widest query tile. They are padded only where that costs less than another group. A query tile is as long as the
  tokens up to its last row, so that causal work is not done twice.
* Bounds. All query tiles form one group. Each may be as long as the longest sequence. Their number is a bound too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ..tiling import Budget, Tiling, partitions_reached


class Shape(NamedTuple):
    """What the cut of a kernel depends on. keys: tokens of a partition. page: tokens of a page. window: or None."""

    kv_heads: int
    keys: int
    page: int
    window: int | None = None


class QueryTile(NamedTuple):
    """A run of rows of a sequence. first: its first row in the query. position: of this row in the sequence.

    A position is negative where a sequence has more rows than tokens.
    """

    sequence: int
    first: int
    rows: int
    position: int

    def begin(self, shape: Shape) -> int:
        """The first position of the partition where the work begins: where the window of the first row begins."""
        if shape.window is None:
            return 0
        return max(0, self.position + 1 - shape.window) // shape.keys * shape.keys

    def tokens(self, shape: Shape) -> int:
        """The tokens from ``begin`` to the position of the last row."""
        return max(0, self.position + self.rows - self.begin(shape))

    def attended_by_all(self, shape: Shape) -> int:
        """The tokens from ``begin`` on that every row attends. With a window this is not worked out: none."""
        return max(0, self.position + 1) if shape.window is None else 0


class Group(NamedTuple):
    """The query tiles of one width.

    width: query rows of a tile. A tile of fewer rows repeats its last one. tiles: the query tiles in the order of
    ``tiling``; None if they are found on the device. number: of query tiles, or a bound of it.
    """

    width: int
    tiles: tuple[QueryTile, ...] | None
    number: int
    tiling: Tiling

    @property
    def full(self) -> bool:
        """Whether each query tile is known to have ``width`` rows."""
        return self.tiles is not None and all(tile.rows == self.width for tile in self.tiles)


class ExtendBudget(NamedTuple):
    """The workspace on one kind of device, and the costs of its pieces in bytes, as in ``tiling.Budget``.

    width: the most query rows of a tile. chunk, segment, padding: as in ``tiling.Budget``.
    row_padding: query rows by pages by KV heads of padding that cost as much time as one more tile.
    chunk_page: the cost of a page in a chunk, for each KV head. page: of a page in a tile, for all heads together.
    The other costs are of one query row: row_page of a page for all heads; segment_page, segment_item and row for
    each KV head, as in ``tiling.Budget``.
    """

    width: int
    chunk: int
    segment: int
    padding: int
    row_padding: int
    chunk_page: int
    page: int
    row_page: int
    segment_page: int
    segment_item: int
    row: int

    def of(self, width: int) -> Budget:
        """The budget of query tiles of ``width`` rows. The wider they are, the less padding is worthwhile."""
        return Budget(
            chunk=self.chunk,
            segment=self.segment,
            padding=self.padding * self.row_padding // (self.row_padding + width * self.padding // self.chunk_page),
            chunk_page=self.chunk_page,
            segment_page=width * self.segment_page,
            segment_item=width * self.segment_item,
            page=self.page + width * self.row_page,
            row=width * self.row,
        )

    def widest(self, shape: Shape, max_query_len: int) -> int:
        """The query rows of a tile: as many as fit the workspace with one partition, and no more than are needed."""
        pages, heads = shape.keys // shape.page, shape.kv_heads
        each = pages * self.row_page + heads * (pages * self.segment_page + self.segment_item + self.row)
        return max(1, min(self.width, max_query_len, (self.segment - pages * self.page) // each))

    def fit(
        self, starts: Sequence[int], seq_lens: Sequence[int], shape: Shape, max_query_len: int
    ) -> tuple[Group, ...]:
        """The groups of a call of known lengths.

        starts: the first row of each sequence, and the end of the last one. A sequence has at most ``max_query_len``
        rows, and none if the next one starts before it. seq_lens: lengths with the new tokens, not negative.
        """
        return _fit(self, tuple(starts), tuple(seq_lens), shape, max_query_len)

    def bound(self, tokens: int, num_seqs: int, longest: int, shape: Shape, max_query_len: int) -> Group:
        """The one group of a call of ``tokens`` rows, whose lengths the host does not read: at most ``longest``."""
        width = self.widest(shape, max_query_len)
        count = min((tokens + num_seqs * (width - 1)) // width, num_seqs * _ceil(max_query_len, width))
        window = shape.window and shape.window + width - 1  # of all rows of a tile
        reached = shape.keys * partitions_reached(longest, shape.keys, window)
        lengths = (min(longest, reached),) * count
        tiling = self.of(width).fit(lengths, shape.kv_heads, shape.keys, shape.page, known=False)
        return Group(width, None, count, tiling)


@lru_cache(maxsize=256)
def _fit(
    budget: ExtendBudget, starts: tuple[int, ...], seq_lens: tuple[int, ...], shape: Shape, max_query_len: int
) -> tuple[Group, ...]:
    counts = [min(max(stop - start, 0), max_query_len) for start, stop in pairwise(starts)]
    width = budget.widest(shape, max(1, *counts))
    tiles = [
        tile
        for s, (start, count, length) in enumerate(zip(starts, counts, seq_lens))
        for tile in _query_tiles(s, start, count, length - count, width)
    ]
    spare = budget.row_padding // shape.kv_heads
    return tuple(_group(budget, members, shape) for members in _of_similar_width(tiles, shape, spare))


def _query_tiles(sequence: int, start: int, count: int, position: int, width: int) -> Iterator[QueryTile]:
    """The query tiles of ``count`` rows from ``start`` and ``position`` on: of even size, at most ``width``."""
    if count:
        step = _ceil(count, _ceil(count, width))
        for first in range(0, count, step):
            yield QueryTile(sequence, start + first, min(step, count - first), position + first)


def _of_similar_width(tiles: Sequence[QueryTile], shape: Shape, spare: int) -> Iterator[list[QueryTile]]:
    """The tiles in groups, widest first. Padding the tiles of a group costs at most ``spare`` rows by pages."""
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
    """The group of ``tiles``, the longest first."""
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
