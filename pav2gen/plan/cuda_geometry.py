"""The classes that describe how the threads of a CUDA decode kernel or extend kernel divide the work."""

from __future__ import annotations

from dataclasses import dataclass

#: The number of lanes in the widest warp of all targets. A layout that keeps all lanes of a 64-lane warp busy also
#: keeps all lanes of 32-lane warps busy.
WIDEST_WARP = 64


@dataclass(frozen=True)
class Geometry:
    """The layout of a CUDA decode kernel, that is, how the threads of a thread block divide the work.

    A thread block processes its partition in steps. In each step, the thread block computes the scores of some tokens,
    and then adds their softmax-weighted values to the output.

    threads: the number of threads in the thread block.
    heads: the number of query heads that the thread block computes.
    step: the number of tokens in a step. Shared memory holds the scores of one step.
    runs: the number of groups of consecutive tokens whose scores a warp computes at the same time.
    key_words: the number of 32-bit words that a thread reads with one load of K.
    value_words: the number of 32-bit words that a thread reads with one load of V.
    row_lanes: the number of threads that read one row of V side by side. A row of V holds one of the ``head_size``
    elements of the value, for every token of a page.
    """

    threads: int
    heads: int
    step: int
    runs: int
    key_words: int
    value_words: int
    row_lanes: int


#: The number of lanes of a warp that score different keys in a CUDA extend kernel. The lanes that score the same key
#: divide the elements of the head among them.
KEY_LANES = 16


@dataclass(frozen=True)
class ExtendGeometry:
    """The layout of a CUDA extend kernel, that is, how the threads of a thread block divide the work.

    A query row is a pair of a query token and a query head. A thread block processes its keys in steps, that is, one
    set of consecutive keys after the other.

    threads: the number of threads in the thread block.
    heads: the number of query heads that the thread block computes.
    tokens: the number of query tokens that the thread block computes.
    step: the number of keys in a step. In each step, shared memory holds first the keys of the step and then their
    values.
    chunk_rows: the number of query rows for which a warp computes scores at the same time.
    lane_keys: the number of keys for which a lane computes scores at the same time.
    load_words: the number of 32-bit words that a thread reads from the KV cache with one load.
    dim_lanes: the number of threads that divide the ``head_size`` output elements of one query row among them.
    partition: the number of keys that the thread block processes in all its steps.
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
        """The number of query rows, that is, of (query token, query head) pairs, that a thread block computes."""
        return self.heads * self.tokens

    @property
    def row_slots(self) -> int:
        """The number of query rows, that is, of (query token, query head) pairs, rounded up to a multiple of
        ``chunk_rows``.
        """
        return -(-self.rows // self.chunk_rows) * self.chunk_rows

    @property
    def run_keys(self) -> int:
        """The number of keys for which a warp computes scores at the same time."""
        return KEY_LANES * self.lane_keys

    @property
    def row_groups(self) -> int:
        """The number of groups of ``dim_lanes`` threads in a thread block.

        Each group computes the outputs of its own query rows, that is, of its own (query token, query head) pairs.
        """
        return self.threads // self.dim_lanes
