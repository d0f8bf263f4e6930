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
    """Predicts the time of a decode call on ``target`` with the numbers of heads of ``rank``.

    plans: the plans of the kernels with the same key, which differ in their partition sizes. The wave model chooses a
    kernel.
    """

    plans: Sequence[Plan]
    rank: RankShape
    target: Target

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V for one token and one KV head."""
        variant = self.plans[0].variant
        return 2 * variant.head_size * variant.cache_item_bytes

    def floor_ms(self, num_seqs: int, seq_len: int) -> float:
        """The time to read each byte of K and V once, at the bandwidth of the target, in ms."""
        return num_seqs * seq_len * self.rank.num_kv_heads * self.token_bytes / (self._bandwidth * 1e6)

    def ms(self, num_seqs: int, seq_len: int, captured: int | None = None) -> float:
        """The predicted time of a call in ms: the time to launch two kernels, plus the time to read K and V.

        Each multiprocessor has an equal part of the bandwidth. ``waves.cost`` estimates how the thread blocks are
        distributed over the multiprocessors.
        captured: the sequence length that a CUDA graph was captured for, if the call replays a graph. The graph also
        launches the thread blocks for the partitions from ``seq_len`` to this length.
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
    """Whether the target's bandwidth and its number of multiprocessors are known, which a prediction needs."""
    return target.bandwidth_gbps is not None and target.multiprocessors is not None
