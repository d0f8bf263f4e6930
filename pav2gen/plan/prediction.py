"""Predicts the time of decode calls on a GPU without measurements. The prediction uses the GPU's bandwidth, its number
of multiprocessors and its time to launch a kernel.
"""

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
    """Predicts the time of a decode call on a GPU, for the kernels of one key.

    plans: the plans of the decode kernels that have this key. The kernels differ only in their partition sizes. For
    each call, the wave model (``runtime.choice.waves``) chooses one of them.
    rank: the numbers of query heads and KV heads of the call.
    target: the GPU.
    """

    plans: Sequence[Plan]
    rank: RankShape
    target: Target

    def floor_ms(self, num_seqs: int, seq_len: int) -> float:
        """Return the lower bound of the time of a call, in ms: the time to read each byte of K and V once at full
        bandwidth.

        num_seqs, seq_len: the number of sequences, and the number of tokens of each.
        """
        return (
            num_seqs * seq_len * self.rank.num_kv_heads * self.plans[0].variant.kv_token_bytes / (self._bandwidth * 1e6)
        )

    def ms(self, num_seqs: int, seq_len: int, captured: int | None = None) -> float:
        """Return the predicted time of a call in ms: the time to launch two kernels (for the partitions, and for the
        reduction), plus the time to read K and V.

        The prediction assumes that each multiprocessor has an equal part of the bandwidth. ``waves.cost`` estimates how
        the thread blocks are distributed over the multiprocessors.

        num_seqs, seq_len: the number of sequences, and the number of tokens of each.
        captured: None, or the sequence length in tokens that a CUDA graph was captured for, if the call replays this
        graph. The graph also launches thread blocks for the partitions between ``seq_len`` and this length.
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
    """Whether ``target`` states the two figures that a prediction needs: the bandwidth and the number of
    multiprocessors.
    """
    return target.bandwidth_gbps is not None and target.multiprocessors is not None
