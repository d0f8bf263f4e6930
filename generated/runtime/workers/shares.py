"""Decides whether worker threads share a call of a PyTorch kernel on a CPU, and how much memory each may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..attention.tiling import Budget, Tiling

if TYPE_CHECKING:
    from .pool import Offer

#: A call is long, or of medium length, if each worker moves at least this number of bytes through the buffers of
#: chunks. These hold the keys or the values of a call as they lie in the cache, in order, and in float32. After an
#: OpenMP region of the caller, such as a matmul, OpenMP's threads spin for some milliseconds and take the cores from
#: the workers. A long call is as fast as without workers all the same. A call of medium length is not, unless other
#: processes use the cores. In a shorter call, the start of the workers takes more time than they save.
LONG_BYTES, MEDIUM_BYTES = 384 << 20, 32 << 20

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
        self, lengths: Sequence[int], kv_heads: int, partition: int, page: int, available: Callable[[], Offer]
    ) -> int:
        """The number of workers for a call with sequences of these lengths, in tokens; 1 if the calling thread is to
        compute the call.

        partition, page: the number of tokens in a partition and in a page.
        available: returns the workers that there are. ``available`` is called only if the call is not short.
        """
        moved = sum(lengths) // page * kv_heads * self.worker.chunk_page
        if moved < 2 * MEDIUM_BYTES:
            return 1
        count, medium = available()
        room = self.workspace // self.worker.most_bytes(partition // page, kv_heads)
        return count if 1 < count <= room and moved >= count * (MEDIUM_BYTES if medium else LONG_BYTES) else 1

    def fit(
        self,
        alone: Budget,
        lengths: Sequence[int],
        kv_heads: int,
        partition: int,
        page: int,
        *,
        known: bool,
        available: Callable[[], Offer],
    ) -> Tiling:
        """The tiling of a call on a CPU (see ``Budget.fit``), within the bounds ``alone`` if no workers share it."""
        count = self.workers(lengths, kv_heads, partition, page, available)
        budget = alone if count == 1 else self.worker
        return budget.fit(lengths, kv_heads, partition, page, known=known, workers=count)
