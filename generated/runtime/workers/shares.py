"""Decides whether worker threads share a call of a PyTorch kernel on a CPU, and how much memory each worker may use."""

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

#: On a crowded machine, workers compute a call if each of them moves at least this number of bytes. The threads of an
#: OpenMP region must all be running at the same time, and on a crowded machine each region may wait for milliseconds.
CROWDED_BYTES = 8 << 20

#: How many tiles per worker may be started before the state of the oldest one is merged. This bounds the memory for
#: states that wait to be merged. It is more than 1, so that a worker that is interrupted does not stop the others.
AHEAD = 3


class Shares(NamedTuple):
    """The memory limits of a call that worker threads share.

    worker: the limits for each worker.
    workspace: the limit for all workers together, in bytes.
    """

    worker: Budget
    workspace: int

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
        """Divide a call on a CPU into tiles (see ``Budget.fit``), and decide how many workers compute the tiles.

        alone: the bounds of a call that no workers share.
        lengths: the length of each sequence in tokens.
        partition, page: the number of tokens in a partition and in a page.
        available: returns the workers that there are. ``available`` is called only if the call is not short.
        """
        moved = sum(lengths) // page * kv_heads * self.worker.chunk_page
        if moved < 2 * CROWDED_BYTES:
            return alone.fit(lengths, kv_heads, partition, page, known=known)
        offer, pages = available(), partition // page
        enough = moved >= offer.workers * (MEDIUM_BYTES if offer.medium else LONG_BYTES)
        if 1 < offer.workers <= self._room(self.worker, pages, kv_heads) and enough:
            return self.worker.fit(lengths, kv_heads, partition, page, known=known, workers=offer.workers)
        tiling = alone.fit(lengths, kv_heads, partition, page, known=known)
        if offer.crowded and moved >= offer.workers * CROWDED_BYTES:
            return self._crowded(tiling, alone, pages, kv_heads, offer.workers)
        return tiling

    def _room(self, budget: Budget, pages: int, kv_heads: int) -> int:
        """The number of workers whose workspaces, of at most ``budget`` each, fit within the bound of all workers.

        pages: the number of pages in a partition.
        """
        return self.workspace // budget.most_bytes(pages, kv_heads)

    def _crowded(self, tiling: Tiling, alone: Budget, pages: int, kv_heads: int, threads: int) -> Tiling:
        """Let workers compute ``tiling``, the tiling of a call that OpenMP would compute with ``threads`` threads.

        The tiles stay the same, and so does every bit of the result. So the load of the machine changes only the time.
        OpenMP computes the call if the tiles could not occupy half of the threads.

        alone: the bounds of the call if no workers share it. pages: the number of pages in a partition.
        """
        # The rows of a tile need more memory than in ``alone``, because states of several tiles wait to be merged.
        waiting = alone._replace(segment=-(-alone.segment * self.worker.row // alone.row), row=self.worker.row)
        count = min(threads, self._room(waiting, pages, kv_heads))
        tiles = sum(len(row_tile.tiles) for row_tile in tiling.row_tiles)
        return tiling._replace(workers=count) if count > 1 and 2 * tiles >= threads else tiling
