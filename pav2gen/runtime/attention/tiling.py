"""Divides a call into tiles, so that the memory for scores, keys and values (the workspace) stays within a limit.

An item is one partition of one sequence, for all KV heads. A tile is a set of items, namely the same partitions of
several sequences. The workspace holds the scores of one tile at a time. A chunk is a group of consecutive items
(partitions of sequences) within a tile. The workspace holds the keys of one chunk at a time, and later the values of
one chunk at a time. A row is a sequence, numbered in the order in which the kernel processes the sequences. A row tile
is the list of tiles that together compute all partitions of some sequences.

The division into tiles depends only on values that the host knows. If the host knows the sequence lengths, the
sequences may be sorted by length, longest first. Each tile then has only the sequences that reach the tile's
partitions, so the work is proportional to the sum of the lengths. The sequences are sorted only if padding to the
longest sequence would cost much time.

If the host knows only an upper bound of the lengths, the kernel processes every sequence as if every sequence had the
maximum length. For example, the host cannot read the lengths during CUDA graph capture.
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
    """The same partitions of several consecutive sequences, which a PyTorch kernel processes together.

    rows: the number of sequences.
    parts: the numbers of the tile's partitions within a sequence, as a slice.

    pages: the number of pages that the kernel processes in each partition of a sequence, which can be less than a whole
    partition only if the tile has a single partition.

    chunk: the number of (sequence, partition) pairs whose keys or values are in memory together (the last chunk of a
    tile may have fewer).

    masked: whether the kernel must mask token slots, for example slots past the end of a sequence that ``tail`` does
    not count.

    padded: whether whole pages of the tile lie past the end of the longest sequence (or of the tile's only sequence, if
    ``tail`` is not 0).

    tail: the number of token slots past the end of the sequence, if the tile has a single sequence of known length;
    otherwise 0.
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
        """The number of (sequence, partition) pairs in the tile."""
        return self.rows * self.num_parts

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """The tuple (items, pages, chunk), which determines the buffer sizes of the tile. An item is one partition of
        one sequence.
        """
        return self.items, self.pages, self.chunk

    def chunks(self, *tensors: torch.Tensor | None) -> Iterator[tuple[Any, ...]]:
        """Split tensors into the parts that belong to each chunk of the tile, and yield one tuple of parts for each
        chunk.

        A chunk is a group of (sequence, partition) pairs whose keys or values are in memory together.

        tensors: tensors whose first dimension is a multiple of ``items``. Any tensor except the first may be None, and
        its part of each chunk is then None.
        """
        if self.chunk >= self.items:
            return iter((tensors,))
        size, items = self.chunk, self.items
        return zip(*(repeat(None) if x is None else x.split(size * (x.shape[0] // items)) for x in tensors))

    def tails(self) -> Iterator[int]:
        """Yield, for each chunk of the tile, the number of token slots past the end of the tile's sequence.

        A chunk is a group of (sequence, partition) pairs whose keys or values are in memory together. The yielded
        number is ``tail`` for the last chunk, and 0 for all other chunks.
        """
        return iter((*repeat(0, _ceil(self.items, self.chunk) - 1), self.tail))


class RowTile(NamedTuple):
    """All tiles that compute the same sequences.

    rows: the sequences, as a slice of the order in which the kernel processes the sequences.
    tiles: the tiles, in the order of the partitions.
    """

    rows: slice
    tiles: tuple[Tile, ...]


class Counts(NamedTuple):
    """The number of row tiles, tiles and chunks into which a call is divided. The module docstring defines these three
    words.

    These numbers determine how many PyTorch functions the kernel calls.
    """

    row_tiles: int
    tiles: int
    chunks: int
    merged_row_tiles: int  # row tiles with more than one tile
    wide_tiles: int  # tiles with more than one partition
    masked_tiles: int
    padded_tiles: int
    masked_chunks: int


class Tiling(NamedTuple):
    """All tiles of one call of the operator, where a tile is a group of partitions that the kernel processes together.

    row_tiles: the tiles, grouped by the sequences that the tiles compute.
    ordered: whether the sequences are sorted by length, longest first.

    covered: the number of partitions, from the first on, that the kernel processes in every sequence, although longer
    sequences may have further partitions.

    shapes: one tile of each distinct ``Tile.shape``.
    workers: the number of worker threads that compute the tiles, or 1 if the calling thread computes the tiles.
    """

    row_tiles: tuple[RowTile, ...]
    ordered: bool
    covered: int
    shapes: tuple[Tile, ...]
    workers: int = 1

    def tiles(self) -> Iterator[Tile]:
        """Iterate over all tiles of all row tiles."""
        return (tile for row_tile in self.row_tiles for tile in row_tile.tiles)

    def counts(self) -> Counts:
        """Count the row tiles, tiles and chunks into which the call is divided. The module docstring defines these
        units.
        """
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
    """The memory limits of a kernel's workspace on one type of device, and the memory that sequences and pages need.

    All fields are in bytes. A tile is a group of partitions that the kernel processes together. A chunk is a part of a
    tile whose keys or values are in memory together.

    chunk: the limit for the buffers that hold the keys, or the values, of one chunk.
    segment: the limit for the buffers that hold the scores of one tile.
    padding: the amount of padding that takes as long to process as one additional tile.
    chunk_page: the memory in a chunk's buffers for each page and KV head.
    segment_page: the memory in a tile's buffers for each page and KV head.
    segment_item: the memory in a tile's buffers for each partition of a sequence and KV head, without ``segment_page``.
    page: the memory in a tile's buffers for each page, independent of the number of KV heads.
    row: the memory for the softmax state of a sequence, for each KV head.
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
        """Divide a call into tiles within the memory limits of this budget.

        A tile is a group of partitions that the kernel processes together. If a single partition of one sequence
        exceeds the limits, each tile has a single partition of one sequence.

        lengths: the length of each sequence in tokens.
        partition_size, page: the number of tokens in a partition and in a page.
        known: True if ``lengths`` are the real lengths; False if ``lengths`` are upper bounds, which must be positive.

        attended: the number of tokens at the start of each sequence that need no mask, or None if no token needs a
        mask. If ``attended`` is not None, the sequences must be sorted by length, longest first.

        workers: the number of worker threads that compute the tiles. The limits apply to the workspace of each worker.
        """
        exempt = None if attended is None else tuple(attended)
        return _fit(self, tuple(lengths), exempt, kv_heads, partition_size, page, known, workers)

    def item(self, pages: int, kv_heads: int) -> int:
        """Return the bytes that one partition of one sequence takes in the buffers of a tile (a group of partitions).

        pages: the number of pages in the partition.
        """
        return kv_heads * (self.segment_item + pages * self.segment_page) + pages * self.page

    def rows(self, pages: int, kv_heads: int, parts: int = 1) -> int:
        """Return the largest number of sequences in a tile (a group of partitions that the kernel processes together).

        parts: the number of partitions of each sequence in the tile.
        pages: the number of pages in a partition.
        """
        return max(1, self.segment // (parts * self.item(pages, kv_heads) + kv_heads * self.row))

    def parts(self, rows: int, pages: int, kv_heads: int) -> int:
        """Return the largest number of partitions of each sequence in a tile (a group of partitions that the kernel
        processes together).

        rows: the number of sequences in the tile.
        pages: the number of pages in a partition.
        """
        return max(1, (self.segment // rows - kv_heads * self.row) // self.item(pages, kv_heads))

    def items(self, pages: int, kv_heads: int) -> int:
        """Return the largest number of (sequence, partition) pairs whose keys or values fit in memory together.

        pages: the number of pages in a partition.
        """
        return max(1, self.chunk // (kv_heads * pages * self.chunk_page))

    def most_bytes(self, pages: int, kv_heads: int) -> int:
        """Return the size in bytes of the largest workspace that a call within these limits can need.

        pages: the number of pages in a partition.
        """
        chunk = max(self.chunk, kv_heads * pages * self.chunk_page)
        return chunk + max(self.segment, self.item(pages, kv_heads) + kv_heads * self.row)

    def spare_pages(self, kv_heads: int) -> int:
        """Return the number of padding pages that cost as much time as one additional tile (a group of partitions)."""
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
    """Return the number of partitions, from the first on, that the kernel processes in every sequence.

    shortest: the tiles of the shortest sequences.
    """
    rows = shortest.rows.stop - shortest.rows.start
    return max(int(tile.parts.stop) for tile in shortest.tiles if tile.rows == rows)


class _Cut:
    """Computes the tiles of a call within the memory limits of ``budget``.

    attended: the number of tokens at the start of each sequence that need no mask.
    extents: the number of pages that the kernel processes in each sequence, in descending order.
    whole: the number of pages in a partition.
    page: the number of tokens in a page.
    known: whether the sequence lengths are exact; False if the lengths are upper bounds.
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
        """Split the sequences into slices with separate tiles, and yield each slice.

        The function splits each group of sequences that ``_groups`` yields evenly into as few slices as the memory
        limits allow.
        """
        for group in self._groups():
            rows = self.budget.rows(min(self.whole, self.extents[group.start]), self.kv_heads)
            for span in _even(group.stop - group.start, rows):
                yield slice(group.start + span.start, group.start + span.stop)

    def _groups(self) -> Iterator[slice]:
        """Split the sequences into groups, and yield each group as a slice.

        The kernel pads the first partition of each sequence to the size of the largest first partition in the group.
        The padding of a group takes at most as long to process as one additional tile (a group of partitions).
        """
        start = wasted = 0
        for row, extent in enumerate(self.extents):
            wasted += min(self.whole, self.extents[start]) - min(self.whole, extent)
            if wasted > self.spare:
                yield slice(start, row)
                start, wasted = row, 0
        yield slice(start, len(self.extents))

    def tiles(self, rows: slice) -> Iterator[Tile]:
        """Yield the tiles that compute the sequences ``rows``, in the order of the partitions.

        Later tiles may have fewer sequences, because short sequences have fewer partitions.
        """
        start, active = 0, int(rows.stop - rows.start)
        while active:
            stop = self._stop(rows.start, active)
            yield from self._rectangle(rows.start, active, start, stop)
            start = stop
            while active and self._end(rows.start + active - 1) <= stop:
                active -= 1

    def _end(self, row: int) -> int:
        """Return the number of partitions of the sequence with number ``row``."""
        return _ceil(self.extents[row], self.whole)

    def _stop(self, first: int, active: int) -> int:
        """Return the partition at which the kernel stops processing all of the ``active`` sequences together.

        The result is the end of the shortest of the ``active`` sequences, or a later partition if padding takes less
        time than an additional tile.

        first: the number of the first sequence.
        active: the number of sequences.
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
        """Yield tiles of about equal size for the partitions from ``start`` to ``stop`` (exclusive) of some sequences.

        The last partition becomes a separate tile if skipping the unused pages of this partition saves work.

        first: the number of the first sequence.
        rows: the number of sequences.
        """
        last = min(self.whole, self.extents[first] - (stop - 1) * self.whole)  # pages
        trimmed = last < self.whole and (stop - start == 1 or rows * (self.whole - last) > self.spare)
        end = stop - trimmed
        for span in self._spans(rows, end - start):
            yield self._tile(first, rows, slice(start + span.start, start + span.stop), self.whole)
        if trimmed:
            yield self._tile(first, rows, slice(end, stop), last)

    def _spans(self, rows: int, parts: int) -> Iterator[slice]:
        """Split a range of partitions into slices of about equal size, one slice for each tile.

        A tile is a group of partitions that the kernel processes together.

        rows: the number of sequences in each tile.
        parts: the number of partitions, all of full size.
        """
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
    """Computes the tiles of a call that several worker threads share.

    If the memory limits allow, a tile has all partitions of the tile's sequences. Otherwise, the number of tiles of a
    sequence is a multiple of the number of workers, so that the workers finish together. The number of tiles is not
    such a multiple if the tiles would then be smaller than ``LEAST_TILE_BYTES``.
    """

    def __init__(self, workers: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.workers = workers

    def row_tiles(self) -> Iterator[slice]:
        """Split the sequences into slices with separate tiles, and yield each slice.

        All sequences of a slice have the same number of partitions. A slice has as many sequences as fit in one tile
        with all partitions.
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
    """Return the largest number of partitions that a query can attend to in a sequence of up to ``longest`` tokens.

    A window of W tokens may begin at any token of a partition. The window therefore touches up to ceil((W - 1) /
    partition) + 1 partitions.

    partition: the number of tokens in a partition.
    window: the sliding window in tokens, or None.
    """
    every = _ceil(longest, partition)
    return every if window is None else min(every, _ceil(window - 1, partition) + 1)


def launched_partitions(longest: int, partition: int, window: int | None) -> int:
    """Return the number of partitions in the grid of a CUDA kernel, for sequences of up to ``longest`` tokens.

    With a single partition in the grid, the kernel writes the output directly, and the reduction kernel does not run.
    The reduction kernel merges partitions, and also marks the partitions before a sliding window as empty in the
    scratch tensors. If ``longest`` exceeds one partition, the result is at least 2, so that the reduction kernel marks
    such partitions.

    partition: the number of tokens in a partition.
    window: the sliding window in tokens, or None.
    """
    return max(min(_ceil(longest, partition), 2), partitions_reached(longest, partition, window))


def _ceil(total: int, step: int) -> int:
    return -(-total // step)


def _step(total: int, most: int) -> int:
    """Return the size of a part, if ``total`` is split evenly into the fewest parts of at most ``most`` elements."""
    return _ceil(total, _ceil(total, most))


def _even(total: int, most: int) -> Iterator[slice]:
    """Split the range from 0 to ``total`` evenly into the fewest slices of at most ``most`` elements."""
    step = _step(total, most) if total else 1
    return (slice(start, min(start + step, total)) for start in range(0, total, step))
