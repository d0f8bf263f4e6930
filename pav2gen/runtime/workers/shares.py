"""Decides whether worker threads share a call of a PyTorch kernel on a CPU, and how much memory each may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..tiling import Budget, Tiling

#: A call is shared if each worker moves at least this number of bytes through the buffers of chunks: the keys or the
#: values of a call as they lie in the cache, in order, and in float32. In a shorter call, the start of the workers and
#: the wait for the last one take more time than OpenMP's waits on a quiet machine (docs/performance.md).
LONG_BYTES = 32 << 20

#: How many tiles per worker may be started before the state of the oldest one is merged. This bounds the memory for
#: states that wait to be merged. It is more than 1, so that a worker that is interrupted does not stop the others.
AHEAD = 3


class Shares(NamedTuple):
    """The bounds of the workspace of a call that worker threads share.

    worker: the bounds of each worker.
    workspace: the bound of all workers together, in bytes.
    """

    worker: Budget
    workspace: int

    def workers(
        self, lengths: Sequence[int], kv_heads: int, partition: int, page: int, available: Callable[[], int]
    ) -> int:
        """The number of workers for a call with sequences of these lengths, in tokens; 1 if the calling thread is to
        compute the call.

        partition, page: the number of tokens in a partition and in a page.
        available: returns the number of threads of the caller. It is called only for calls that are long enough.
        """
        moved = sum(lengths) // page * kv_heads * self.worker.chunk_page
        if moved < 2 * LONG_BYTES:
            return 1
        count = available()
        room = self.workspace // self.worker.most_bytes(partition // page, kv_heads)
        return count if 1 < count <= room and moved >= count * LONG_BYTES else 1

    def fit(
        self,
        alone: Budget,
        lengths: Sequence[int],
        kv_heads: int,
        partition: int,
        page: int,
        *,
        known: bool,
        available: Callable[[], int],
    ) -> Tiling:
        """The tiling of a call on a CPU (see ``Budget.fit``), within the bounds ``alone`` if no workers share it."""
        count = self.workers(lengths, kv_heads, partition, page, available)
        budget = alone if count == 1 else self.worker
        return budget.fit(lengths, kv_heads, partition, page, known=known, workers=count)
