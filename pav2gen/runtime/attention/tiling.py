"""Divides a call into tiles, so that the memory for scores, keys and values (the workspace) stays within a bound.

An *item* is one partition of one sequence, for all KV heads. A *tile* is a rectangle of items: the same partitions of
several sequences. The workspace holds all scores of one tile. A *chunk* is a group of consecutive items of a tile. The
workspace holds the keys of one chunk, and later the values of one chunk. A *row* is a sequence, numbered in the order
in which the tiles process the sequences. A *row tile* is the series of tiles that process the same rows, from the first
partition to the last.

The tiling depends only on values that the host knows, so the number of PyTorch calls is known in advance. There are two
cases:

* The host knows the sequence lengths. If padding would cost much, the sequences are sorted by length, longest first.
  Each tile has only the sequences that reach its partitions. The work is proportional to the sum of the lengths.
* The host knows only an upper bound, for instance because the call is captured in a CUDA graph. Every sequence is
  processed as if it had the maximum length.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


#: A sequence is divided further than its memory needs, so that workers finish together, only into tiles that move at
#: least this number of bytes through the buffers of chunks. A tile costs 40 to 50 ATen calls, and these take about as
#: long as 1 MiB.
LEAST_TILE_BYTES = 32 << 20


@dataclass(frozen=True)
class Tile:
    """A rectangle of items: some partitions of the first rows of a row tile.

    The docstring of this module defines items, chunks, rows and row tiles.

    rows: the number of sequences.
    parts: the tile's partitions, as a slice of the partitions of a sequence.
    pages: the number of pages in each item. An item has fewer pages than a partition only if the tile has a single
    partition, which was trimmed to its used pages.
    chunk: the number of items in each chunk; the last chunk may have fewer.
    masked: whether a kernel needs a mask, for example because token slots may lie past the end of their sequence. The
    slots that ``tail`` counts need no mask.
    padded: whether the tile has pages past the end of the longest sequence, or, with ``tail``, of its only sequence.
    tail: the number of token slots at the end of the tile that lie past the end of the sequence, if the tile has a
    single sequence of known length; else 0.
    """

    rows: int
    parts: slice
    pages: int
    chunk: int
    masked: bool
    padded: bool
    tail: int = 0

    @cached_property
    def num_parts(self) -> int:
        """The number of partitions that the tile has of each sequence."""
        return int(self.parts.stop - self.parts.start)

    @cached_property
    def items(self) -> int:
        """The number of items in the tile: rows times partitions."""
        return self.rows * self.num_parts

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """The numbers (items, pages, chunk), which determine the sizes of the tile's buffers in the workspace."""
        return self.items, self.pages, self.chunk

    def chunks(self, *tensors: torch.Tensor | None) -> Iterator[tuple[Any, ...]]:
        """Iterate over the chunks of the tile. For each chunk, yield the part of each tensor that belongs to the chunk.

        tensors: tensors that have a multiple of ``items`` as their first dimension. A tensor other than the first may
        be None; its part of each chunk is then None too.
        """
        if self.chunk >= self.items:
            return iter((tensors,))
        size, items = self.chunk, self.items
        return zip(*(repeat(None) if x is None else x.split(size * (x.shape[0] // items)) for x in tensors))

    def tails(self) -> Iterator[int]:
        """Yield for each chunk the number of token slots past the end of the sequence: ``tail`` for the last chunk,
        else 0.
        """
        return iter((*repeat(0, _ceil(self.items, self.chunk) - 1), self.tail))


class RowTile(NamedTuple):
    """All tiles that process the same sequences. rows: these sequences, as a slice of the call's rows."""

    rows: slice
    tiles: tuple[Tile, ...]


class Counts(NamedTuple):
    """The numbers of row tiles, tiles and chunks in a tiling, which determine the number of PyTorch calls."""

    row_tiles: int
    tiles: int
    chunks: int
    merged_row_tiles: int  # row tiles with more than one tile
    wide_tiles: int  # tiles with more than one partition
    masked_tiles: int
    padded_tiles: int
    masked_chunks: int


class Tiling(NamedTuple):
    """All tiles of one call of the operator.

    ordered: whether the sequences are sorted by length, longest first.
    covered: the number of partitions, from the first on, that are processed for all sequences, even the shortest.
    Longer sequences may have further partitions.
    shapes: one tile of each distinct ``Tile.shape``.
    workers: the number of worker threads that compute the tiles, or 1 if the calling thread computes them.
    """

    row_tiles: tuple[RowTile, ...]
    ordered: bool
    covered: int
    shapes: tuple[Tile, ...]
    workers: int = 1

    def tiles(self) -> Iterator[Tile]:
        """All tiles of all row tiles."""
        return (tile for row_tile in self.row_tiles for tile in row_tile.tiles)

    def counts(self) -> Counts:
        """Count the row tiles, tiles and chunks of this tiling."""
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
    """The bounds of the workspace on one type of device, and the memory that a tile needs. All fields are in bytes.

    chunk: the bound for the buffers that hold the keys, or the values, of one chunk.
    segment: the bound for the buffers that hold the scores of one tile.
    padding: the amount of padding that takes as long to process as one more tile.
    chunk_page: memory for a page in a chunk's buffers, for each KV head.
    segment_page: memory for a page in a tile's buffers, for each KV head.
    segment_item: memory for an item in a tile's buffers, without the memory for its pages, for each KV head.
    page: further memory for a page in a tile's buffers, for all heads together.
    row: memory for the softmax state of a sequence, for each KV head.
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
        workers: int = 1,
    ) -> Tiling:
        """Return the tiling of a call that has one sequence for each length in ``lengths``, in tokens.

        If a single item needs more memory than the bounds allow, each tile has one item.

        partition_size, page: the number of tokens in a partition and in a page.
        known: True if ``lengths`` are the real lengths; False if they are upper bounds of the lengths. Upper bounds
        must be positive.
        attended: for each sequence, the number of tokens at its start that need no mask. If ``attended`` is None, no
        token of a sequence needs a mask. If ``attended`` is given, the sequences must be sorted, longest first.
        workers: the number of worker threads that compute the tiles. The bounds hold for the workspace of each worker.
        """
        exempt = None if attended is None else tuple(attended)
        return _fit(self, tuple(lengths), exempt, kv_heads, partition_size, page, known, workers)

    def item(self, pages: int, kv_heads: int) -> int:
        """The number of bytes that an item with ``pages`` pages takes in a tile's buffers."""
        return kv_heads * (self.segment_item + pages * self.segment_page) + pages * self.page

    def rows(self, pages: int, kv_heads: int, parts: int = 1) -> int:
        """The largest number of sequences that a tile may have, if it has ``parts`` partitions of each sequence.

        pages: the number of pages in a partition.
        """
        return max(1, self.segment // (parts * self.item(pages, kv_heads) + kv_heads * self.row))

    def parts(self, rows: int, pages: int, kv_heads: int) -> int:
        """The largest number of partitions, of ``pages`` pages each, in a tile that has ``rows`` sequences."""
        return max(1, (self.segment // rows - kv_heads * self.row) // self.item(pages, kv_heads))

    def items(self, pages: int, kv_heads: int) -> int:
        """The largest number of items, of ``pages`` pages each, in a chunk."""
        return max(1, self.chunk // (kv_heads * pages * self.chunk_page))

    def most_bytes(self, pages: int, kv_heads: int) -> int:
        """The largest workspace, in bytes, that tiles within these bounds take. pages: the pages of a partition."""
        chunk = max(self.chunk, kv_heads * pages * self.chunk_page)
        return chunk + max(self.segment, self.item(pages, kv_heads) + kv_heads * self.row)

    def spare_pages(self, kv_heads: int) -> int:
        """The number of padding pages that take as long to process as one more tile."""
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
    workers: int,
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
    kind = _Cut if workers == 1 else functools.partial(_SharedCut, workers)
    cut = kind(budget, exempt, extents, kv_heads, partition_size // page, page, known, known and attended is None)
    row_tiles = tuple(RowTile(rows, tuple(cut.tiles(rows))) for rows in cut.row_tiles())
    shapes = {tile.shape: tile for row_tile in row_tiles for tile in row_tile.tiles}
    return Tiling(row_tiles, ordered, _covered(row_tiles[-1]), tuple(shapes.values()), workers)


def _covered(shortest: RowTile) -> int:
    """The number of partitions, from the first on, that are processed for all sequences.

    shortest: the row tile with the shortest sequences, which are processed for the fewest partitions.
    """
    rows = shortest.rows.stop - shortest.rows.start
    return max(int(tile.parts.stop) for tile in shortest.tiles if tile.rows == rows)


class _Cut:
    """Makes the tiles of a call within the bounds of ``budget``.

    attended: for each sequence, the number of tokens at its start that need no mask.
    extents: the number of pages to process for each sequence, sorted, largest first.
    whole: the number of pages in a partition. page: the number of tokens in a page.
    known: whether the sequence lengths are known, not only upper bounds.
    tails: whether a tile with a single sequence uses ``Tile.tail`` instead of a mask.
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
        self.spare = budget.spare_pages(kv_heads)  # the number of padding pages that cost as much as one more tile

    def row_tiles(self) -> Iterator[slice]:
        """Yield the sequences of each row tile. Each group of ``_groups`` is split evenly into as few row tiles as the
        budget allows.
        """
        for group in self._groups():
            rows = self.budget.rows(min(self.whole, self.extents[group.start]), self.kv_heads)
            for span in _even(group.stop - group.start, rows):
                yield slice(group.start + span.start, group.start + span.stop)

    def _groups(self) -> Iterator[slice]:
        """Split the sequences into groups.

        In a group, it costs little time to pad the first partition of each sequence to the size of the largest first
        partition.
        """
        start = wasted = 0
        for row, extent in enumerate(self.extents):
            wasted += min(self.whole, self.extents[start]) - min(self.whole, extent)
            if wasted > self.spare:
                yield slice(start, row)
                start, wasted = row, 0
        yield slice(start, len(self.extents))

    def tiles(self, rows: slice) -> Iterator[Tile]:
        """Yield the tiles of the row tile with the sequences ``rows``, in the order of the partitions.

        Later tiles have fewer rows, because short sequences have fewer partitions.
        """
        start, active = 0, int(rows.stop - rows.start)
        while active:
            stop = self._stop(rows.start, active)
            yield from self._rectangle(rows.start, active, start, stop)
            start = stop
            while active and self._end(rows.start + active - 1) <= stop:
                active -= 1

    def _end(self, row: int) -> int:
        """The number of partitions of the sequence ``row``."""
        return _ceil(self.extents[row], self.whole)

    def _stop(self, first: int, active: int) -> int:
        """The partition before which a rectangle ends that has ``active`` sequences, from number ``first`` on.

        A rectangle becomes one or more tiles. It ends where the shortest of these sequences ends, or later if padding
        is cheaper than another tile.
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
        """Yield tiles of about equal size for partitions ``start`` to ``stop`` (exclusive) of ``rows`` sequences from
        ``first`` on.

        The last partition becomes a separate tile if it has unused pages and leaving these out saves work.
        """
        last = min(self.whole, self.extents[first] - (stop - 1) * self.whole)  # pages
        trimmed = last < self.whole and (stop - start == 1 or rows * (self.whole - last) > self.spare)
        end = stop - trimmed
        for span in self._spans(rows, end - start):
            yield self._tile(first, rows, slice(start + span.start, start + span.stop), self.whole)
        if trimmed:
            yield self._tile(first, rows, slice(end, stop), last)

    def _spans(self, rows: int, parts: int) -> Iterator[slice]:
        """Split ``parts`` whole partitions of ``rows`` sequences into slices of about equal size, one for each tile."""
        return _even(parts, self.budget.parts(rows, self.whole, self.kv_heads))

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


class _SharedCut(_Cut):
    """Makes the tiles of a call that several worker threads share: tiles of whole sequences, if the bounds allow, and
    for a longer sequence a multiple of the number of workers, so that the workers finish together.
    """

    def __init__(self, workers: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.workers = workers

    def row_tiles(self) -> Iterator[slice]:
        """Yield the sequences of each row tile. The sequences of a row tile have the same number of partitions. A row
        tile has as many sequences as fit in one tile, with all of their partitions.
        """
        for group in self._groups():
            for parts, run in itertools.groupby(range(group.start, group.stop), self._end):
                same = list(run)
                rows = self.budget.rows(min(self.whole, self.extents[same[0]]), self.kv_heads, parts)
                for span in _even(len(same), rows):
                    yield slice(same[0] + span.start, same[0] + span.stop)

    def _spans(self, rows: int, parts: int) -> Iterator[slice]:
        if rows > 1 or not parts:
            return super()._spans(rows, parts)
        count = _ceil(parts, self.budget.parts(rows, self.whole, self.kv_heads))
        multiple = _ceil(count, self.workers) * self.workers
        if parts // multiple * self.kv_heads * self.whole * self.budget.chunk_page >= LEAST_TILE_BYTES:
            count = multiple
        return (slice(number * parts // count, (number + 1) * parts // count) for number in range(count))


def partitions_reached(longest: int, partition: int, window: int | None) -> int:
    """The largest number of partitions that a query can attend to in a sequence of up to ``longest`` tokens.

    partition: the number of tokens in a partition. window: the sliding window in tokens, or None. A window of W tokens
    may begin anywhere in a partition, so it touches up to ceil((W - 1) / partition) + 1 partitions.
    """
    every = _ceil(longest, partition)
    return every if window is None else min(every, _ceil(window - 1, partition) + 1)


def launched_partitions(longest: int, partition: int, window: int | None) -> int:
    """The number of partitions in the grid of a CUDA kernel, for sequences of up to ``longest`` tokens.

    If the grid has a single partition, the kernel writes the output directly, and the reduction (the kernel that merges
    partitions) does not run. The reduction also marks the partitions before a sliding window as empty in the scratch,
    so it must run if there can be such partitions. The grid therefore has at least two partitions if ``longest``
    exceeds one partition.

    partition: the number of tokens in a partition. window: the sliding window in tokens, or None.
    """
    return max(min(_ceil(longest, partition), 2), partitions_reached(longest, partition, window))


def _ceil(total: int, step: int) -> int:
    return -(-total // step)


def _step(total: int, most: int) -> int:
    """Split ``total`` evenly into the fewest parts of at most ``most`` each. Return the size of a part."""
    return _ceil(total, _ceil(total, most))


def _even(total: int, most: int) -> Iterator[slice]:
    """Split the range from 0 to ``total`` evenly into the fewest slices that have at most ``most`` elements each."""
    step = _step(total, most) if total else 1
    return (slice(start, min(start + step, total)) for start in range(0, total, step))
