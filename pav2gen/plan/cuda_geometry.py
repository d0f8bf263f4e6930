"""The geometry of a CUDA thread block of an attention kernel: how the threads divide the work."""

from __future__ import annotations

from dataclasses import dataclass

#: The number of lanes in the widest warp. A layout that keeps warps of 64 lanes busy also keeps warps of 32 lanes busy.
WIDEST_WARP = 64


@dataclass(frozen=True)
class Geometry:
    """How the threads of a decode kernel's thread block divide the work.

    threads: the number of threads in the block.
    heads: the number of query heads that the block computes.
    step: the number of tokens in a step. The block scores the tokens of a step, then adds their values, and then goes
    on to the next step. Shared memory holds the scores of one step.
    runs: the number of runs that a warp scores at the same time. A run is a group of consecutive tokens.
    key_words: the number of 32-bit words that a thread reads with one load of keys.
    value_words: the number of 32-bit words that a thread reads with one load of values.
    row_lanes: the number of threads that read one row of V side by side. A row of V is one element of the head for all
    tokens of a page.
    """

    threads: int
    heads: int
    step: int
    runs: int
    key_words: int
    value_words: int
    row_lanes: int


#: The number of lanes of a warp that score different keys. The lanes with the same key divide the elements of the head
#: among them.
KEY_LANES = 16


@dataclass(frozen=True)
class ExtendGeometry:
    """How the threads of an extend kernel's thread block divide the work.

    A query row is a pair of a query token and a query head.

    threads: the number of threads in the block.
    heads: the number of query heads that the block computes.
    tokens: the number of query tokens that the block computes.
    step: the number of keys that shared memory holds at the same time. The values of these keys replace them later.
    chunk_rows: the number of query rows that a warp scores at the same time.
    lane_keys: the number of keys that a lane scores at the same time.
    load_words: the number of 32-bit words that a thread reads from the cache with one load.
    dim_lanes: the number of threads that divide the elements of one query row's output among them while values are
    added.
    partition: the number of keys that the block processes.
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
        """The number of query rows in a thread block."""
        return self.heads * self.tokens

    @property
    def row_slots(self) -> int:
        """The number of query rows in a thread block, rounded up to a multiple of ``chunk_rows``."""
        return -(-self.rows // self.chunk_rows) * self.chunk_rows

    @property
    def run_keys(self) -> int:
        """The number of keys that a warp scores at the same time."""
        return KEY_LANES * self.lane_keys

    @property
    def row_groups(self) -> int:
        """The number of groups of ``dim_lanes`` threads. While values are added, each group works on its own query
        rows.
        """
        return self.threads // self.dim_lanes
