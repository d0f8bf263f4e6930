"""Cuts a call into tiles so that its workspace stays within a bound, for any lengths and any number of sequences.

An *item* is one partition of one sequence, for all KV heads. A *tile* is a rectangle of items: the same partitions of
several sequences. The workspace holds all scores of one tile. A *chunk* is a run of a tile's items. The workspace holds
the keys, and then the values, of one chunk. A *row tile* is the series of tiles that process the same sequences, from
their first partition to their last.

The tiling depends on host values alone, so the number of PyTorch calls is known in advance. There are two cases:

* The host knows the lengths. The sequences are sorted by length, longest first, and each tile has only the sequences
  that reach its partitions. The work is proportional to the sum of the lengths.
* The host knows only an upper bound, for instance because the call is captured in a CUDA graph. Every sequence is
  processed as if it had the maximum length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class Tile(NamedTuple):
    """A rectangle of items: some partitions of the first sequences of a row tile.

    rows: the number of sequences. parts: the partitions. pages: the pages of each item; this is less than the pages of
    a partition only if ``parts`` is one partition that is trimmed. chunk: items in a chunk. masked: whether some slots
    besides the last ``tail`` ones may be past the end of their sequence. padded: whether the last partition has pages
    beyond the end of the longest sequence. tail: if the tile is a single sequence of known length, the slots past its
    end, fewer than those of an item; else 0.
    """

    rows: int
    parts: slice
    pages: int
    chunk: int
    masked: bool
    padded: bool
    tail: int = 0

    @property
    def num_parts(self) -> int:
        """The number of partitions."""
        return int(self.parts.stop - self.parts.start)

    @property
    def items(self) -> int:
        """The number of items."""
        return self.rows * self.num_parts

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers that determine the sizes of the tile's buffers."""
        return self.items, self.pages, self.chunk

    def chunks(self, *tensors: torch.Tensor | None) -> Iterator[tuple[Any, ...]]:
        """Slice ``tensors``, each [a multiple of items, ...] or None, into chunks. The first one must be a tensor."""
        if self.chunk >= self.items:
            return iter((tensors,))
        size, items = self.chunk, self.items
        return zip(*(repeat(None) if x is None else x.split(size * (x.shape[0] // items)) for x in tensors))

    def tails(self) -> Iterator[int]:
        """The slots past the end in each chunk, of ``tail``: they all lie in the last one."""
        return iter((*repeat(0, _ceil(self.items, self.chunk) - 1), self.tail))


class RowTile(NamedTuple):
    """The tiles that process the sequences ``rows``, which are numbered in the order of the tiling."""

    rows: slice
    tiles: tuple[Tile, ...]


class Counts(NamedTuple):
    """The counts of row tiles, tiles and chunks. They determine how many PyTorch calls a call of the operator makes."""

    row_tiles: int
    tiles: int
    chunks: int
    merged_row_tiles: int  # of several tiles
    wide_tiles: int  # of several partitions
    masked_tiles: int
    padded_tiles: int
    masked_chunks: int


class Tiling(NamedTuple):
    """All tiles of one call.

    ordered: whether the sequences are sorted by length, longest first. covered: the number of partitions that are
    processed in every sequence. shapes: one tile of each shape.
    """

    row_tiles: tuple[RowTile, ...]
    ordered: bool
    covered: int
    shapes: tuple[Tile, ...]

    def tiles(self) -> Iterator[Tile]:
        """All tiles."""
        return (tile for row_tile in self.row_tiles for tile in row_tile.tiles)

    def counts(self) -> Counts:
        """The counts that determine the call's number of PyTorch calls."""
        tiles = list(self.tiles())
        chunks = [_ceil(tile.items, tile.chunk) for tile in tiles]
        return Counts(
            row_tiles=len(self.row_tiles),
            tiles=len(tiles),
            chunks=sum(chunks),
            merged_row_tiles=sum(len(row_tile.tiles) > 1 for row_tile in self.row_tiles),
            wide_tiles=sum(tile.num_parts > 1 for tile in tiles),
            masked_tiles=sum(tile.masked for tile in tiles),
            padded_tiles=sum(tile.padded for tile in tiles),
            masked_chunks=sum(count for count, tile in zip(chunks, tiles) if tile.masked),
        )


class Budget(NamedTuple):
    """The bounds of the workspace on one kind of device, and the bytes that each of its parts needs. All are in bytes.

    chunk, segment: the bounds of the workspace's two parts: one chunk's keys or values, and one tile's scores.
    padding: processing this many bytes of padding takes as long as one more tile. Less padding is cheaper than a tile.
    chunk_page, segment_page: bytes of a page in a chunk and in a tile, for each KV head.
    segment_item: bytes of an item in a tile, besides its pages, for each KV head.
    page: further bytes of a page in a tile, for all heads together.
    row: bytes of the softmax state of a sequence, for each KV head.
    """

    chunk: int
    segment: int
    padding: int
    chunk_page: int
    segment_page: int
    segment_item: int
    page: int
    row: int

    def fit(
        self,
        lengths: Sequence[int],
        kv_heads: int,
        partition_size: int,
        page: int,
        *,
        known: bool,
        attended: Sequence[int] | None = None,
    ) -> Tiling:
        """The tiling of a call with sequences of ``lengths`` tokens.

        known: whether ``lengths`` are the real lengths. If not, they are upper bounds and must be positive. If one item
        alone exceeds the budget, each tile has one item. attended: the first tokens of each sequence that need no mask,
        if not all of them. The sequences must then be given longest first.
        """
        exempt = None if attended is None else tuple(attended)
        return _fit(self, tuple(lengths), exempt, kv_heads, partition_size, page, known)

    def item(self, pages: int, kv_heads: int) -> int:
        """The bytes of an item of ``pages`` pages in a tile."""
        return kv_heads * (self.segment_item + pages * self.segment_page) + pages * self.page

    def rows(self, pages: int, kv_heads: int) -> int:
        """The most sequences that fit a tile with one partition of each sequence, of ``pages`` pages; at least 1."""
        return max(1, self.segment // (self.item(pages, kv_heads) + kv_heads * self.row))

    def parts(self, rows: int, pages: int, kv_heads: int) -> int:
        """How many partitions a tile may have if it has ``rows`` sequences."""
        return max(1, (self.segment // rows - kv_heads * self.row) // self.item(pages, kv_heads))

    def items(self, pages: int, kv_heads: int) -> int:
        """How many items of ``pages`` pages a chunk may have."""
        return max(1, self.chunk // (kv_heads * pages * self.chunk_page))

    def spare_pages(self, kv_heads: int) -> int:
        """How many pages of padding are cheaper than one more tile."""
        return self.padding // (kv_heads * self.chunk_page)


@lru_cache(maxsize=256)
def _fit(
    budget: Budget,
    lengths: tuple[int, ...],
    attended: tuple[int, ...] | None,
    kv_heads: int,
    partition_size: int,
    page: int,
    known: bool,
) -> Tiling:
    extents = [max(1, _ceil(length, page)) for length in lengths]
    longest = max(extents)
    ordered = len(extents) * longest - sum(extents) > budget.spare_pages(kv_heads)
    if ordered:
        lengths = tuple(sorted(lengths, reverse=True))
        extents.sort(reverse=True)
    else:
        extents = [longest] * len(extents)
    exempt = lengths if attended is None else attended
    cut = _Cut(budget, exempt, extents, kv_heads, partition_size // page, page, known, known and attended is None)
    row_tiles = tuple(RowTile(rows, tuple(cut.tiles(rows))) for rows in cut.row_tiles())
    shapes = {tile.shape: tile for row_tile in row_tiles for tile in row_tile.tiles}
    return Tiling(row_tiles, ordered, _covered(row_tiles[-1]), tuple(shapes.values()))


def _covered(shortest: RowTile) -> int:
    """The number of partitions that are processed in every sequence of the row tile with the shortest sequences."""
    rows = shortest.rows.stop - shortest.rows.start
    return max(int(tile.parts.stop) for tile in shortest.tiles if tile.rows == rows)


class _Cut:
    """Makes the tiles for sequences of ``extents`` pages, which are sorted, longest first.

    attended: the first tokens of each sequence that need no mask. whole: pages of a partition. spare: how many pages of
    padding are cheaper than one more tile. tails: whether a tile of one sequence has a tail instead of a mask.
    """

    def __init__(
        self,
        budget: Budget,
        attended: Sequence[int],
        extents: Sequence[int],
        kv_heads: int,
        whole: int,
        page: int,
        known: bool,
        tails: bool,
    ) -> None:
        self.budget, self.attended, self.extents, self.tails = budget, attended, extents, tails
        self.kv_heads, self.whole, self.page, self.known = kv_heads, whole, page, known
        self.spare = budget.spare_pages(kv_heads)

    def row_tiles(self) -> Iterator[slice]:
        """The sequences of each row tile. A row tile has as many as fit, and all have about the same number."""
        for group in self._groups():
            rows = self.budget.rows(min(self.whole, self.extents[group.start]), self.kv_heads)
            for span in _even(group.stop - group.start, rows):
                yield slice(group.start + span.start, group.start + span.stop)

    def _groups(self) -> Iterator[slice]:
        """Split the sequences into groups with first partitions of similar size, so that they need little padding."""
        start = wasted = 0
        for row, extent in enumerate(self.extents):
            wasted += min(self.whole, self.extents[start]) - min(self.whole, extent)
            if wasted > self.spare:
                yield slice(start, row)
                start, wasted = row, 0
        yield slice(start, len(self.extents))

    def tiles(self, rows: slice) -> Iterator[Tile]:
        """The tiles of a row tile, from the first partition on. Fewer sequences reach the later partitions."""
        start, active = 0, int(rows.stop - rows.start)
        while active:
            stop = self._stop(rows.start, active)
            yield from self._rectangle(rows.start, active, start, stop)
            start = stop
            while active and self._end(rows.start + active - 1) <= stop:
                active -= 1

    def _end(self, row: int) -> int:
        """The number of partitions of a sequence."""
        return _ceil(self.extents[row], self.whole)

    def _stop(self, first: int, active: int) -> int:
        """The last partition of a rectangle of ``active`` sequences, exclusive.

        It is the end of the shortest of these sequences, or later if padding is cheaper than another tile.
        """
        stop, wasted = self._end(first + active - 1), 0
        for row in range(active - 2, -1, -1):
            end = self._end(first + row)
            wasted += (end - stop) * (active - 1 - row) * self.whole
            if wasted > self.spare:
                break
            stop = end
        return stop

    def _rectangle(self, first: int, rows: int, start: int, stop: int) -> Iterator[Tile]:
        """Tiles of about equal size for partitions ``start`` to ``stop``.

        The last partition becomes a tile of its own if trimming its pages saves work.
        """
        last = min(self.whole, self.extents[first] - (stop - 1) * self.whole)  # pages
        trimmed = last < self.whole and (stop - start == 1 or rows * (self.whole - last) > self.spare)
        end = stop - trimmed
        for span in _even(end - start, self.budget.parts(rows, self.whole, self.kv_heads)):
            yield self._tile(first, rows, slice(start + span.start, start + span.stop), self.whole)
        if trimmed:
            yield self._tile(first, rows, slice(end, stop), last)

    def _tile(self, first: int, rows: int, parts: slice, pages: int) -> Tile:
        end = (parts.stop - 1) * self.whole + pages
        past = max(0, end * self.page - min(self.attended[first : first + rows]))
        alone = self.tails and rows == 1 and past < pages * self.page
        items = rows * (parts.stop - parts.start)
        return Tile(
            rows=rows,
            parts=parts,
            pages=pages,
            chunk=_step(items, self.budget.items(pages, self.kv_heads)),
            masked=not alone and (not self.known or past > 0),
            padded=past >= self.page if alone else end > self.extents[0],
            tail=past if alone else 0,
        )


def partitions_reached(longest: int, partition: int, window: int | None) -> int:
    """The largest number of partitions that a query attends to, in a sequence of up to ``longest`` tokens.

    A window of W tokens may end anywhere in a partition, so it lies in up to ceil((W - 1) / partition) + 1 partitions.
    """
    every = _ceil(longest, partition)
    return every if window is None else min(every, _ceil(window - 1, partition) + 1)


def _ceil(total: int, step: int) -> int:
    return -(-total // step)


def _step(total: int, most: int) -> int:
    """The size of the pieces if ``total`` is split evenly into as few pieces of at most ``most`` as possible."""
    return _ceil(total, _ceil(total, most))


def _even(total: int, most: int) -> Iterator[slice]:
    """Split 0 ... ``total`` evenly into as few consecutive slices of at most ``most`` as possible."""
    step = _step(total, most) if total else 1
    return (slice(start, min(start + step, total)) for start in range(0, total, step))
