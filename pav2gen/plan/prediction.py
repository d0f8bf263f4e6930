"""Predicts the time of decode calls from the GPU's bandwidth, multiprocessor count and kernel launch time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pav2gen.family.spec import RankShape
from pav2gen.family.target import Target
from pav2gen.runtime.choice.waves import cheapest, cost

if TYPE_CHECKING:
    from pav2gen.plan.kernel import Plan


@dataclass(frozen=True)
class Predictor:
    """Predicts the time of decode calls on one GPU.

    plans: the plans of decode kernels that differ only in their partition size. ``runtime.choice.waves.cheapest``
    chooses one kernel for each call.
    rank: the numbers of query heads and KV heads of each call.
    target: the GPU.
    """

    plans: Sequence[Plan]
    rank: RankShape
    target: Target

    def floor_ms(self, num_seqs: int, seq_len: int) -> float:
        """Return a lower bound of the time of a call, in ms.

        The bound is the time to read all keys and values once at the GPU's full bandwidth.

        num_seqs: the number of sequences.
        seq_len: the number of tokens of each sequence.
        """
        return (
            num_seqs * seq_len * self.rank.num_kv_heads * self.plans[0].variant.kv_token_bytes / (self._bandwidth * 1e6)
        )

    def ms(self, num_seqs: int, seq_len: int, captured: int | None = None) -> float:
        """Return the predicted time of a call, in ms.

        The prediction is the time to launch two kernels, plus the time to read the keys and values. The first kernel
        computes all partitions, and the second kernel merges their results. The prediction assumes that all
        multiprocessors share the bandwidth equally. ``runtime.choice.waves.cost`` estimates how thread blocks are
        distributed over the multiprocessors.

        num_seqs: the number of sequences.
        seq_len: the number of tokens of each sequence.
        captured: the sequence length in tokens for which a CUDA graph was captured, or None if the call replays no
        graph. A replayed graph also launches thread blocks for the partitions between ``seq_len`` and ``captured``.
        """
        rows, heads = [plan.row() for plan in self.plans], self.rank.num_kv_heads
        longest = seq_len if captured is None else captured
        row = cheapest(rows, num_seqs, longest, heads, "cuda", captured is not None)
        share = self._bandwidth * 1e6 / self._multiprocessors  # bytes a millisecond for each multiprocessor
        launches = 2 * (self.target.launch_us or 0.0) / 1e3
        tokens = cost(row, num_seqs, longest, heads, seq_len=seq_len)
        return launches + tokens * self.plans[0].variant.kv_token_bytes / share

    @property
    def _bandwidth(self) -> float:
        assert self.target.bandwidth_gbps is not None, "of a target that can be predicted"
        return self.target.bandwidth_gbps

    @property
    def _multiprocessors(self) -> int:
        assert self.target.multiprocessors is not None, "of a target that can be predicted"
        return self.target.multiprocessors


def predictable(target: Target) -> bool:
    """Whether the GPU's bandwidth and number of multiprocessors, which predictions need, are known."""
    return target.bandwidth_gbps is not None and target.multiprocessors is not None
