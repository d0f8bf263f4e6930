"""The plan of a variant: every derived number of a kernel. Each number is computed once, here.

Templates write these numbers as literals, `pav2gen list` shows them, and tests check the kernels against them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pav2gen.family.axes import title
from pav2gen.family.spec import RankShape, Spec
from pav2gen.family.variant import CacheVariant, Point, Variant
from pav2gen.plan.cache_plan import CachePlan, plan_cache
from pav2gen.plan.cuda_plan import CudaPlan, plan_cuda
from pav2gen.plan.torch_plan import TorchPlan
from pav2gen.runtime.select import MIB, Row
from pav2gen.runtime.tiling import Budget


@dataclass(frozen=True)
class Plan:
    """All figures of one kernel."""

    variant: Variant
    spec: Spec
    torch: TorchPlan

    @cached_property
    def cuda(self) -> CudaPlan:
        """The figures of the CUDA kernel. They are computed at the first use."""
        return plan_cuda(self.variant, self.spec.target, self.spec.cuda)

    @property
    def title(self) -> str:
        """The key in words, for the head of a source."""
        return title(self.variant.key._asdict())

    @property
    def formula(self) -> str:
        """The argument of the softmax as a formula, for the head of a source."""
        v, text = self.variant, "scale * q[s] K[s]^T"
        if v.softcap is not None:
            text = f"softcap({text})"
        text += " + alibi" * v.alibi
        if v.own and v.own.score:
            text = f"{v.own.name}({text})"
        hidden = v.sliding_window or v.blocksparse or (v.own and v.own.mask)
        return f"{text}, masked" * bool(hidden) or text

    @cached_property
    def rank(self) -> RankShape:
        """The heads of one rank, for the smallest tensor-parallel size that has this kernel's ratio."""
        model, ratio = self.spec.model, self.variant.gqa_ratio
        ranks = (rank for rank in model.ranks() if rank.gqa_ratio == ratio)
        return next(ranks, RankShape(1, model.num_kv_heads * ratio, model.num_kv_heads))

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in one layer, for the rank."""
        return 2 * self.variant.head_size * self.variant.cache_item_bytes * self.rank.num_kv_heads

    def torch_calls(self, num_seqs: int, max_seq_len: int, budget: Budget, *, known: bool = False) -> int:
        """ATen calls that are not views, for the rank's KV heads and sequences of ``max_seq_len`` tokens each.

        known: whether the host reads the lengths.
        """
        v, lengths = self.variant, self.torch.lengths(num_seqs, max_seq_len)
        known = known and v.sliding_window is None
        tiling = budget.fit(lengths, self.rank.num_kv_heads, v.partition_size, v.block_size, known=known)
        return self.torch.calls(tiling)

    @cached_property
    def figures(self) -> dict[str, int | float | str | None]:
        """The figures that ``pav2gen list`` shows, for one sequence of the model's full length. None: not known."""
        tokens = self.spec.model.max_seq_len
        bandwidth = self.spec.target.bandwidth_gbps
        kv_bytes = self.kv_bytes_per_token * tokens
        return {
            "heads": f"{self.rank.num_heads}/{self.rank.num_kv_heads}",
            "tokens": tokens,
            "partitions": -(-tokens // self.variant.partition_size),
            "kv_mib": round(kv_bytes / MIB, 1),
            "workspace_mib": self.spec.limits.workspace_mib,
            "torch_calls": self.torch_calls(1, tokens, self.torch.gpu),
            "floor_ms": round(kv_bytes / bandwidth / 1e6, 2) if bandwidth else None,
            **(self.cuda.figures() if "cuda" in self.spec.backends else {}),
        }

    def row(self) -> Row:
        """The kernel's row of the dispatch table."""
        v, dispatch, target = self.variant, self.spec.dispatch, self.spec.target
        row = Row(
            symbol=v.symbol,
            spec=v.spec,
            key=v.key,
            partition_size=v.partition_size,
            torch=v.torch_path.removesuffix(".py").replace("/", ".") if "torch" in self.spec.backends else "",
            cuda=v.cuda_path if "cuda" in self.spec.backends else "",
            min_seq_len=dispatch.min_seq_len,
            fixed_partition=dispatch.partition or 0,
            multiprocessors=target.multiprocessors or 0,
            workspace_mib=self.spec.limits.workspace_mib,
            host_lengths=dispatch.host_lengths,
            modification=v.own.for_table() if v.own else None,
        )
        if not row.cuda:
            return row
        return row._replace(
            resident_blocks=self.cuda.occupancy.blocks,
            saturating_blocks=self.cuda.saturating_blocks,
            blocks_per_group=self.cuda.blocks_per_group,
        )


def plan(variant: Variant, spec: Spec) -> Plan:
    """The figures of ``variant`` under the limits and the target of ``spec``."""
    return Plan(variant, spec, TorchPlan(variant, spec.limits.workspace_mib * MIB))


class Kernel(NamedTuple):
    """A decode kernel and its plan: ``v`` and ``p`` in its templates."""

    v: Variant
    p: Plan


class Writer(NamedTuple):
    """A cache writer and its plan: ``v`` and ``p`` in its templates."""

    v: CacheVariant
    p: CachePlan


#: A kernel of any operator.
AnyKernel = Kernel | Writer


def kernel(point: Point, spec: Spec) -> AnyKernel:
    """A kernel with its plan."""
    if isinstance(point, CacheVariant):
        return Writer(point, plan_cache(point, spec))
    if isinstance(point, Variant):
        return Kernel(point, plan(point, spec))
    raise TypeError(f"no plan for operator {point.operator}")


def kernels(spec: Spec, points: Iterable[Point]) -> tuple[AnyKernel, ...]:
    """Each point with its plan, in the order of ``points``. All files are rendered from this tuple."""
    return tuple(kernel(point, spec) for point in points)
