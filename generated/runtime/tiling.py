"""Cuts a call into tiles so that its workspace stays within a bound, for any lengths and any number of sequences.

An *item* is one partition of one sequence, for all KV heads. A *tile* is a rectangle of items: some sequences by some
partitions. A tile's scores are held at once. A *chunk* is a run of a tile's items. A chunk's keys, then its values, are
held at once. A *row tile* is the tiles of the same sequences, from their first partition to their last.

The cut follows from host values alone, so the number of calls is known before the call. Two kinds of lengths go in:

* Known lengths. The sequences are ordered by length, longest first, and a tile covers the sequences that reach it. The
  work is proportional to the sum of the lengths.
* Bounds. Every sequence may be as long as the longest. This is the cut of a call whose lengths the host does not read,
  for instance because the call is captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class Tile(NamedTuple):
    """A rectangle of items.

    rows: the number of sequences: the first ones of the row tile. parts: the partitions. pages: the pages of each item;
    fewer than a partition has only where ``parts`` is a single, trimmed partition. chunk: items in a chunk. masked:
    whether a slot may hold no token. padded: whether the last partition goes beyond the longest sequence.
    """

    rows: int
    parts: slice
    pages: int
    chunk: int
    masked: bool
    padded: bool

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
        """The sizes that the buffers of the tile depend on."""
        return self.items, self.pages, self.chunk

    def chunks(self, *tensors: torch.Tensor | None) -> Iterator[tuple[Any, ...]]:
        """Each chunk's part of ``tensors``, all [items, ...]. None stays None; the first is a tensor."""
        if self.chunk >= self.items:
            return iter((tensors,))
        return zip(*(repeat(None) if tensor is None else tensor.split(self.chunk) for tensor in tensors))


class RowTile(NamedTuple):
    """The sequences ``rows`` (in the order of the tiling) and the tiles that cover them."""

    rows: slice
    tiles: tuple[Tile, ...]


class Counts(NamedTuple):
    """The counts that determine a call's number of launches: row tiles, tiles, chunks, and special kinds of tiles."""

    row_tiles: int
    tiles: int
    chunks: int
    merged_row_tiles: int  # of several tiles
    wide_tiles: int  # of several partitions
    masked_tiles: int
    padded_tiles: int
    masked_chunks: int


class Tiling(NamedTuple):
    """The cut of one call.

    ordered: whether the sequences are taken in the order of their lengths, longest first. covered: partitions that the
    tiles reach in every sequence. shapes: a tile of each shape.
    """

    row_tiles: tuple[RowTile, ...]
    ordered: bool
    covered: int
    shapes: tuple[Tile, ...]

    def tiles(self) -> Iterator[Tile]:
        """All tiles."""
        return (tile for row_tile in self.row_tiles for tile in row_tile.tiles)

    def counts(self) -> Counts:
        """The figures of the call's number of launches."""
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
    """The workspace on one kind of device, and the costs of its pieces, all in bytes.

    chunk, segment: the two shares of the workspace: of a chunk, and of a tile's scores.
    padding: bytes of chunks that cost as much time as one more tile. Padding up to here is cheaper than a cut.
    chunk_page, segment_page: the cost of a page in each, for each KV head.
    segment_item: the cost of an item without its pages, for each KV head.
    page: a further cost of a page in a tile, for all heads together.
    row: the cost of a sequence's state, for each KV head.
    """

    chunk: int
    segment: int
    padding: int
    chunk_page: int
    segment_page: int
    segment_item: int
    page: int
    row: int

    def fit(self, lengths: Sequence[int], kv_heads: int, partition_size: int, page: int, *, known: bool) -> Tiling:
        """The tiling of a call of sequences of ``lengths`` tokens, all of them positive if they are not ``known``.

        Takes positive counts. ``lengths`` that are not known are bounds. A budget too small for one item is exceeded by
        that one item.
        """
        return _fit(self, tuple(lengths), kv_heads, partition_size, page, known)

    def item(self, pages: int, kv_heads: int) -> int:
        """Bytes of an item of ``pages`` pages in a tile."""
        return kv_heads * (self.segment_item + pages * self.segment_page) + pages * self.page

    def rows(self, pages: int, kv_heads: int) -> int:
        """The number of sequences that fit a tile with items of ``pages`` pages."""
        return max(1, self.segment // (self.item(pages, kv_heads) + kv_heads * self.row))

    def parts(self, rows: int, pages: int, kv_heads: int) -> int:
        """Partitions of ``rows`` sequences that fit a tile."""
        return max(1, (self.segment // rows - kv_heads * self.row) // self.item(pages, kv_heads))

    def items(self, pages: int, kv_heads: int) -> int:
        """Items of ``pages`` pages that fit a chunk."""
        return max(1, self.chunk // (kv_heads * pages * self.chunk_page))

    def spare_pages(self, kv_heads: int) -> int:
        """Pages of padding that are cheaper than a cut."""
        return self.padding // (kv_heads * self.chunk_page)


@lru_cache(maxsize=256)
def _fit(
    budget: Budget, lengths: tuple[int, ...], kv_heads: int, partition_size: int, page: int, known: bool
) -> Tiling:
    extents = [max(1, _ceil(length, page)) for length in lengths]
    longest = max(extents)
    ordered = len(extents) * longest - sum(extents) > budget.spare_pages(kv_heads)
    if ordered:
        lengths = tuple(sorted(lengths, reverse=True))
        extents.sort(reverse=True)
    else:
        extents = [longest] * len(extents)
    cut = _Cut(budget, lengths, extents, kv_heads, partition_size // page, page, known)
    row_tiles = tuple(RowTile(rows, tuple(cut.tiles(rows))) for rows in cut.row_tiles())
    shapes = {tile.shape: tile for row_tile in row_tiles for tile in row_tile.tiles}
    return Tiling(row_tiles, ordered, _covered(row_tiles[-1]), tuple(shapes.values()))


def _covered(shortest: RowTile) -> int:
    """The partitions that the tiles reach in every sequence of the row tile with the shortest ones."""
    rows = shortest.rows.stop - shortest.rows.start
    return max(int(tile.parts.stop) for tile in shortest.tiles if tile.rows == rows)


class _Cut:
    """The cut of sequences of ``extents`` pages, none longer than the one before it.

    whole: pages of a partition. spare: pages of padding that are cheaper than a cut.
    """

    def __init__(
        self,
        budget: Budget,
        lengths: Sequence[int],
        extents: Sequence[int],
        kv_heads: int,
        whole: int,
        page: int,
        known: bool,
    ) -> None:
        self.budget, self.lengths, self.extents = budget, lengths, extents
        self.kv_heads, self.whole, self.page, self.known = kv_heads, whole, page, known
        self.spare = budget.spare_pages(kv_heads)

    def row_tiles(self) -> Iterator[slice]:
        """The sequences of each row tile: as many as fit, in tiles of even size."""
        for group in self._groups():
            rows = self.budget.rows(min(self.whole, self.extents[group.start]), self.kv_heads)
            for span in _even(group.stop - group.start, rows):
                yield slice(group.start + span.start, group.start + span.stop)

    def _groups(self) -> Iterator[slice]:
        """Groups of consecutive sequences with first partitions of similar size. Costly padding is cut away."""
        start = wasted = 0
        for row, extent in enumerate(self.extents):
            wasted += min(self.whole, self.extents[start]) - min(self.whole, extent)
            if wasted > self.spare:
                yield slice(start, row)
                start, wasted = row, 0
        yield slice(start, len(self.extents))

    def tiles(self, rows: slice) -> Iterator[Tile]:
        """The tiles of a row tile, from the first partition on. Fewer sequences reach the later ones."""
        start, active = 0, int(rows.stop - rows.start)
        while active:
            stop = self._stop(rows.start, active)
            yield from self._rectangle(rows.start, active, start, stop)
            start = stop
            while active and self._end(rows.start + active - 1) <= stop:
                active -= 1

    def _end(self, row: int) -> int:
        """Partitions of a sequence."""
        return _ceil(self.extents[row], self.whole)

    def _stop(self, first: int, active: int) -> int:
        """The end of a rectangle of ``active`` sequences: the shortest one's end, or later if padding is cheaper."""
        stop, wasted = self._end(first + active - 1), 0
        for row in range(active - 2, -1, -1):
            end = self._end(first + row)
            wasted += (end - stop) * (active - 1 - row) * self.whole
            if wasted > self.spare:
                break
            stop = end
        return stop

    def _rectangle(self, first: int, rows: int, start: int, stop: int) -> Iterator[Tile]:
        """Tiles of even size for partitions ``start`` to ``stop``; the last partition apart where a trim saves work."""
        last = min(self.whole, self.extents[first] - (stop - 1) * self.whole)  # pages
        trimmed = last < self.whole and (stop - start == 1 or rows * (self.whole - last) > self.spare)
        end = stop - trimmed
        for span in _even(end - start, self.budget.parts(rows, self.whole, self.kv_heads)):
            yield self._tile(first, rows, slice(start + span.start, start + span.stop), self.whole)
        if trimmed:
            yield self._tile(first, rows, slice(end, stop), last)

    def _tile(self, first: int, rows: int, parts: slice, pages: int) -> Tile:
        end = (parts.stop - 1) * self.whole + pages
        shortest = min(self.lengths[first : first + rows])
        items = rows * (parts.stop - parts.start)
        return Tile(
            rows=rows,
            parts=parts,
            pages=pages,
            chunk=_step(items, self.budget.items(pages, self.kv_heads)),
            masked=not self.known or shortest < end * self.page,
            padded=end > self.extents[0],
        )


def partitions_reached(longest: int, partition: int, window: int | None) -> int:
    """The most partitions with a token that a query attends, of sequences of up to ``longest`` tokens.

    A window of W tokens ends anywhere in a partition, so that it reaches over ceil((W - 1) / partition) + 1 of them.
    """
    every = _ceil(longest, partition)
    return every if window is None else min(every, _ceil(window - 1, partition) + 1)


def _ceil(total: int, step: int) -> int:
    return -(-total // step)


def _step(total: int, most: int) -> int:
    """The size of even pieces of ``total``: as few pieces as pieces of ``most`` would be."""
    return _ceil(total, _ceil(total, most))


def _even(total: int, most: int) -> Iterator[slice]:
    """Consecutive slices of even size, at most ``most``, that cover ``total``."""
    step = _step(total, most) if total else 1
    return (slice(start, min(start + step, total)) for start in range(0, total, step))
