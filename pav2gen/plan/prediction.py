"""Predicts kernel times on a GPU from its bandwidth, its multiprocessors and its launch time, without measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pav2gen.family.spec import RankShape
from pav2gen.family.target import Target
from pav2gen.runtime.waves import cheapest, cost

if TYPE_CHECKING:
    from pav2gen.plan.kernel import Plan


@dataclass(frozen=True)
class Predictor:
    """Predicts the time of a decode call on ``target``, for the numbers of heads of ``rank``.

    plans: the plans of the kernels with one configuration (``Key``). The wave model chooses one.
    """

    plans: Sequence[Plan]
    rank: RankShape
    target: Target

    @property
    def token_bytes(self) -> int:
        """The bytes of K and V for one token and one KV head."""
        variant = self.plans[0].variant
        return 2 * variant.head_size * variant.cache_item_bytes

    def floor_ms(self, num_seqs: int, seq_len: int) -> float:
        """Return the time, in ms, to read each byte of K and V once, at the bandwidth of the target."""
        return num_seqs * seq_len * self.rank.num_kv_heads * self.token_bytes / (self._bandwidth * 1e6)

    def ms(self, num_seqs: int, seq_len: int, captured: int | None = None) -> float:
        """Return the predicted time in ms: the time of two launches, plus the time to read K and V.

        The multiprocessors share the bandwidth evenly. ``waves.cost`` estimates how the thread blocks fill them.
        captured: the length that a CUDA graph was captured for, if the call is a replay of one. The graph also has the
        thread blocks of the partitions between ``seq_len`` and that length.
        """
        rows, heads = [plan.row() for plan in self.plans], self.rank.num_kv_heads
        longest = seq_len if captured is None else captured
        row = cheapest(rows, num_seqs, longest, heads, "cuda", captured is not None)
        share = self._bandwidth * 1e6 / self._multiprocessors  # bytes a millisecond for each multiprocessor
        launches = 2 * (self.target.launch_us or 0.0) / 1e3
        return launches + cost(row, num_seqs, longest, heads, seq_len=seq_len) * self.token_bytes / share

    @property
    def _bandwidth(self) -> float:
        assert self.target.bandwidth_gbps is not None, "of a target that can be predicted"
        return self.target.bandwidth_gbps

    @property
    def _multiprocessors(self) -> int:
        assert self.target.multiprocessors is not None, "of a target that can be predicted"
        return self.target.multiprocessors


def predictable(target: Target) -> bool:
    """Whether the target's bandwidth and its number of multiprocessors are known. A prediction needs both."""
    return target.bandwidth_gbps is not None and target.multiprocessors is not None
