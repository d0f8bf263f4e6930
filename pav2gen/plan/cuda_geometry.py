"""The geometry of a CUDA thread block of decode or extend: how its threads share the work."""

from __future__ import annotations

from dataclasses import dataclass

#: Lanes of the widest warp. A layout that keeps warps of 64 lanes busy also keeps warps of 32 lanes busy.
WIDEST_WARP = 64


@dataclass(frozen=True)
class Geometry:
    """How the threads of a block share the work.

    threads: threads of a block.
    heads: query heads that a block computes.
    step: tokens that a block processes between two barriers; their scores are in shared memory together.
    runs: runs of consecutive tokens that a warp scores together.
    key_words: 32-bit words of a load of keys.
    value_words: 32-bit words of a load of values.
    row_lanes: threads side by side in a row of values. A row is one element of the head over the tokens of a page.
    """

    threads: int
    heads: int
    step: int
    runs: int
    key_words: int
    value_words: int
    row_lanes: int


#: The number of lanes of a warp that score different keys. The lanes of one key share the elements of the head.
KEY_LANES = 16


@dataclass(frozen=True)
class ExtendGeometry:
    """How the threads of a block of an extend kernel share the work. A row is a pair of a query token and a query head.

    threads: threads of a block.
    heads: query heads of a block.
    tokens: query tokens of a tile.
    step: keys that are in shared memory together. Later their values are in the same place.
    chunk_rows: rows that a warp scores together.
    lane_keys: keys that a lane scores together.
    load_words: 32-bit words of a load from the cache.
    dim_lanes: threads that share the elements of one row while values are added.
    partition: keys that a block processes.
    """

    threads: int
    heads: int
    tokens: int
    step: int
    chunk_rows: int
    lane_keys: int
    load_words: int
    dim_lanes: int
    partition: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.heads * self.tokens

    @property
    def row_slots(self) -> int:
        """Rows of a block, rounded up to whole chunks."""
        return -(-self.rows // self.chunk_rows) * self.chunk_rows

    @property
    def run_keys(self) -> int:
        """Keys that a warp scores together."""
        return KEY_LANES * self.lane_keys

    @property
    def row_groups(self) -> int:
        """Groups of threads that share the rows while values are added."""
        return self.threads // self.dim_lanes
