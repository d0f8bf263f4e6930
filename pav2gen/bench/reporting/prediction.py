"""Predicts times on a target without measurements: the wave model, with the target's bandwidth and launch time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pav2gen.family.spec import RankShape
from pav2gen.family.target import Target
from pav2gen.plan.kernel import Plan
from pav2gen.runtime.select import cost


@dataclass(frozen=True)
class Predictor:
    """Predicts times on ``target`` for the heads of ``rank``: those of the fastest of ``plans``, which have one key."""

    plans: Sequence[Plan]
    rank: RankShape
    target: Target

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token and one KV head."""
        variant = self.plans[0].variant
        return 2 * variant.head_size * variant.cache_item_bytes

    def floor_ms(self, num_seqs: int, seq_len: int) -> float:
        """The time in which the target can move each byte of K and V once."""
        return num_seqs * seq_len * self.rank.num_kv_heads * self.token_bytes / (self._bandwidth * 1e6)

    def ms(self, num_seqs: int, seq_len: int) -> float:
        """The predicted time in ms: two launches, and waves of thread blocks that share the bandwidth evenly."""
        share = self._bandwidth * 1e6 / self._multiprocessors  # bytes a millisecond for each multiprocessor
        launches = 2 * (self.target.launch_us or 0.0) / 1e3
        tokens = min(cost(plan.row(), num_seqs, seq_len, self.rank.num_kv_heads) for plan in self.plans)
        return launches + tokens * self.token_bytes / share

    @property
    def _bandwidth(self) -> float:
        assert self.target.bandwidth_gbps is not None, "of a target that can be predicted"
        return self.target.bandwidth_gbps

    @property
    def _multiprocessors(self) -> int:
        assert self.target.multiprocessors is not None, "of a target that can be predicted"
        return self.target.multiprocessors


def predictable(target: Target) -> bool:
    """Whether all figures of ``target`` that a prediction needs are known."""
    return target.bandwidth_gbps is not None and target.multiprocessors is not None
