"""Makes the plan of each kernel: all numbers that follow from the kernel's axis values and its spec.

Templates write these numbers into sources, ``pav2gen list`` shows them, and tests compare them with what kernels do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pav2gen.family.spec import Spec
from pav2gen.family.variant import CacheVariant, ExtendVariant, Point, Variant
from pav2gen.plan.attention_plan import AttentionPlan
from pav2gen.plan.cache_plan import CachePlan, plan_cache
from pav2gen.plan.cuda_plan import CudaPlan, plan_cuda
from pav2gen.plan.extend_plan import ExtendPlan, plan_extend
from pav2gen.plan.prediction import Predictor, predictable
from pav2gen.plan.torch_plan import TorchPlan
from pav2gen.runtime.attention.tiling import Budget
from pav2gen.runtime.choice.dispatch_row import MIB, Row


@dataclass(frozen=True)
class Plan(AttentionPlan):
    """The plans of the PyTorch version and the CUDA version of one decode kernel, its figures and its dispatch row."""

    variant: Variant
    torch: TorchPlan

    @cached_property
    def cuda(self) -> CudaPlan:
        """The plan of the kernel's CUDA version, computed when this property is first read."""
        return plan_cuda(self.variant, self.spec.target, self.spec.cuda)

    def torch_calls(self, num_seqs: int, max_seq_len: int, budget: Budget, *, known: bool = False) -> int:
        """Return the number of ATen calls that one call of the PyTorch kernel makes, not counting views. The call has
        as many KV heads as the property ``rank`` states.

        num_seqs, max_seq_len: the number of sequences, and the number of tokens of each.
        budget: the bounds of the workspace: ``self.torch.cpu`` or ``self.torch.gpu``.
        known: whether the host knows the sequence lengths.
        """
        v, lengths = self.variant, self.torch.lengths(num_seqs, max_seq_len)
        known = known and v.sliding_window is None
        tiling = budget.fit(lengths, self.rank.num_kv_heads, v.partition_size, v.block_size, known=known)
        return self.torch.calls(tiling)

    @cached_property
    def figures(self) -> dict[str, int | float | str | None]:
        """The figures of this kernel for the table of ``pav2gen list``, as a dict by the names of the columns. A figure
        is None if the target does not state a number that it depends on, such as the bandwidth.

        Figures that depend on a call are for a call with one sequence of ``max_seq_len`` tokens, the longest of the
        model.
        """
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
            **({**self.cuda.figures(), **self.predictions()} if "cuda" in self.spec.backends else {}),
        }

    def predictions(self) -> dict[str, float | None]:
        """Return the predicted times of the CUDA kernel in ms, as a dict. The keys are names of columns of ``pav2gen
        list``.

        predicted_ms: the time of a call with one sequence of ``max_seq_len`` tokens, the longest of the model.
        replay_ms: the time of a call with one sequence of one token, in a CUDA graph that was captured for
        ``max_seq_len``.

        Both times are None if the target does not state its bandwidth or its number of multiprocessors.
        """
        target, tokens = self.spec.target, self.spec.model.max_seq_len
        if not predictable(target):
            return {"predicted_ms": None, "replay_ms": None}
        own = Predictor([self], self.rank, target)
        return {"predicted_ms": round(own.ms(1, tokens), 3), "replay_ms": round(own.ms(1, 1, tokens), 3)}

    def row(self) -> Row:
        """Return the kernel's row in the dispatch table."""
        row = self.base_row(self.variant.partition_size)
        if not row.cuda:
            return row
        return row._replace(
            resident_blocks=self.cuda.occupancy.blocks,
            saturating_blocks=self.cuda.saturating_blocks,
            blocks_per_group=self.cuda.blocks_per_group,
            empty_tokens=self.cuda.empty_tokens,
        )


def plan(variant: Variant, spec: Spec) -> Plan:
    """Make the plan of the decode kernel ``variant``. ``spec`` states the target and the workspace limit."""
    return Plan(variant, spec, TorchPlan(variant, spec.limits.workspace_mib * MIB))


class Kernel(NamedTuple):
    """A decode kernel and its plan. The fields have the names that templates use.

    v: the variant.
    p: the plan.
    """

    v: Variant
    p: Plan


class Extender(NamedTuple):
    """An extend kernel and its plan. The fields have the names that templates use.

    v: the variant.
    p: the plan.
    """

    v: ExtendVariant
    p: ExtendPlan


class Writer(NamedTuple):
    """A cache writer and its plan. The fields have the names that templates use.

    v: the variant.
    p: the plan.
    """

    v: CacheVariant
    p: CachePlan


#: A kernel of any operator, with its plan.
AnyKernel = Kernel | Extender | Writer


def kernel(point: Point, spec: Spec) -> AnyKernel:
    """Make the plan of the kernel ``point``, which may be a kernel of any operator. Return the kernel with its plan."""
    if isinstance(point, CacheVariant):
        return Writer(point, plan_cache(point, spec))
    if isinstance(point, ExtendVariant):
        return Extender(point, plan_extend(point, spec))
    if isinstance(point, Variant):
        return Kernel(point, plan(point, spec))
    raise TypeError(f"no plan for operator {point.operator}")


def kernels(spec: Spec, points: Iterable[Point]) -> tuple[AnyKernel, ...]:
    """Make the plans of the kernels ``points`` of ``spec``. Return the kernels with their plans, in the same order."""
    return tuple(kernel(point, spec) for point in points)
