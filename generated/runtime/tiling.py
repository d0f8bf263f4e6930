"""How a call is cut so that its workspace stays within a bound, whatever the lengths and the number of sequences.

An *item* is one partition of one sequence, for all KV heads. A *segment* is a rectangle of items, ``rows`` sequences by
``parts`` partitions, whose scores are held at once; a *chunk* is a run of a segment's items whose keys or values are
held at once. All of it follows from host values, so the number of calls is known before the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Budget(NamedTuple):
    """The workspace on one kind of device, and what its pieces cost; all in bytes.

    chunk, segment: the two shares of the workspace.
    chunk_item, segment_item: what an item costs in each, for each KV head.
    item: what an item costs beside that. row: what the state of a sequence costs, for each KV head.
    """

    chunk: int
    segment: int
    chunk_item: int
    segment_item: int
    item: int
    row: int

    def fit(self, num_seqs: int, max_seq_len: int, kv_heads: int, partition_size: int) -> Tiling:
        """The tiling of a call: all sequences at once while the budget allows it, then as many partitions as it holds.

        Takes positive counts. A budget too small for one item is exceeded by that one item.
        """
        item, row = kv_heads * self.segment_item + self.item, kv_heads * self.row
        partitions = -(-max_seq_len // partition_size)
        rows = max(1, min(num_seqs, self.segment // (item + row)))
        parts = max(1, min(partitions, (self.segment // rows - row) // item))
        parts = -(-partitions // -(-partitions // parts))  # the same number of segments, of even size
        chunk = max(1, min(rows * parts, self.chunk // (kv_heads * self.chunk_item)))
        return Tiling(num_seqs, partitions, rows, parts, chunk)


class Tiling(NamedTuple):
    """The cut of one call. All counts are of sequences, partitions or items."""

    num_seqs: int
    partitions: int
    rows: int
    parts: int
    chunk: int

    def row_tiles(self) -> Iterator[slice]:
        """The sequences of each row of segments."""
        return _slices(self.num_seqs, self.rows)

    def part_tiles(self) -> Iterator[slice]:
        """The partitions of each segment in a row of segments."""
        return _slices(self.partitions, self.parts)

    def chunks(self, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        """What each chunk has of ``tensors``, all [items of a segment, ...]."""
        return zip(*(tensor.split(self.chunk) for tensor in tensors))

    def counts(self) -> tuple[int, int, int]:
        """(rows of segments, segments, chunks) of the call: what its number of launches is made of."""
        rows, last_rows = divmod(self.num_seqs, self.rows)
        parts, last_parts = divmod(self.partitions, self.parts)
        chunks = (
            rows * parts * _ceil(self.rows * self.parts, self.chunk)
            + rows * _ceil(self.rows * last_parts, self.chunk)
            + parts * _ceil(last_rows * self.parts, self.chunk)
            + _ceil(last_rows * last_parts, self.chunk)
        )
        rows_of_segments = rows + (last_rows > 0)
        return rows_of_segments, rows_of_segments * (parts + (last_parts > 0)), chunks


def _ceil(total: int, step: int) -> int:
    return -(-total // step)


def _slices(total: int, step: int) -> Iterator[slice]:
    """Consecutive slices of at most ``step`` that cover ``total``."""
    return (slice(start, min(start + step, total)) for start in range(0, total, step))
