"""Computes the plan of each kernel: its buffer sizes, its thread layout and its estimated costs.

Templates write the computed numbers into the kernel sources. ``pav2gen list`` prints some of the computed numbers.
Tests compare the computed numbers with measurements of the kernels.
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
    """The plan of one decode kernel, for its PyTorch version and its CUDA version."""

    variant: Variant
    torch: TorchPlan

    @cached_property
    def cuda(self) -> CudaPlan:
        """The computed sizes and costs of the kernel's CUDA version."""
        return plan_cuda(self.variant, self.spec.target, self.spec.cuda)

    def torch_calls(self, num_seqs: int, max_seq_len: int, budget: Budget, *, known: bool = False) -> int:
        """Return the number of ATen calls that the PyTorch kernel makes in one call of the operator.

        ATen calls that only create views do not count. The property ``rank`` sets the number of KV heads.

        num_seqs: the number of sequences.
        max_seq_len: the number of tokens of each sequence.
        budget: the memory limits of the kernel's temporary buffers, either ``self.torch.cpu`` or ``self.torch.gpu``.
        known: whether the host knows the sequence lengths.
        """
        v, lengths = self.variant, self.torch.lengths(num_seqs, max_seq_len)
        known = known and v.sliding_window is None
        tiling = budget.fit(lengths, self.rank.num_kv_heads, v.partition_size, v.block_size, known=known)
        return self.torch.calls(tiling)

    @cached_property
    def figures(self) -> dict[str, int | float | str | None]:
        """The values that ``pav2gen list`` prints for this kernel, as a dict from column name to value.

        A value is None if it depends on an unknown property of the GPU, such as the bandwidth. Values that depend on a
        call assume one sequence of ``max_seq_len`` tokens, the model's maximum.
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
        """Return the predicted times of the CUDA kernel in ms, as a dict from ``pav2gen list`` column name to time.

        predicted_ms: the time of a call with one sequence of ``max_seq_len`` tokens, the model's maximum.
        replay_ms: the time of a call with one sequence of one token, if a CUDA graph captured for ``max_seq_len``
        tokens is replayed.

        Both predicted times are None if the bandwidth or the number of multiprocessors of the GPU is unknown.
        """
        target, tokens = self.spec.target, self.spec.model.max_seq_len
        if not predictable(target):
            return {"predicted_ms": None, "replay_ms": None}
        own = Predictor([self], self.rank, target)
        return {"predicted_ms": round(own.ms(1, tokens), 3), "replay_ms": round(own.ms(1, 1, tokens), 3)}

    def row(self) -> Row:
        """Return the kernel's row in the dispatch table, from which the runtime chooses a kernel for each call."""
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
    """Compute the plan of the decode kernel ``variant``.

    ``spec`` provides the GPU's properties and the workspace limit, that is, the limit on the memory for temporary
    buffers.
    """
    return Plan(variant, spec, TorchPlan(variant, spec.limits.workspace_mib * MIB))


class Kernel(NamedTuple):
    """A decode kernel together with its plan.

    v: the properties of the kernel, such as its head size and dtype.
    p: the plan of the kernel.
    """

    v: Variant
    p: Plan


class Extender(NamedTuple):
    """An extend kernel together with its plan.

    v: the properties of the kernel, such as its head size and dtype.
    p: the plan of the kernel.
    """

    v: ExtendVariant
    p: ExtendPlan


class Writer(NamedTuple):
    """A kernel that writes new keys and values into the KV cache, together with its plan.

    v: the properties of the kernel, such as its head size and dtype.
    p: the plan of the kernel.
    """

    v: CacheVariant
    p: CachePlan


#: A kernel of any operator, with its plan.
AnyKernel = Kernel | Extender | Writer


def kernel(point: Point, spec: Spec) -> AnyKernel:
    """Compute the plan of one kernel, and return the kernel together with its plan.

    Raises TypeError if ``point`` is neither a decode kernel, nor an extend kernel, nor a cache writer.

    point: the properties of the kernel, such as its head size and dtype.
    spec: the parsed YAML file that requests the kernel.
    """
    if isinstance(point, CacheVariant):
        return Writer(point, plan_cache(point, spec))
    if isinstance(point, ExtendVariant):
        return Extender(point, plan_extend(point, spec))
    if isinstance(point, Variant):
        return Kernel(point, plan(point, spec))
    raise TypeError(f"no plan for operator {point.operator}")


def kernels(spec: Spec, points: Iterable[Point]) -> tuple[AnyKernel, ...]:
    """Compute the plans of several kernels, and return each kernel together with its plan.

    points: the properties of each kernel, such as its head size and dtype. The result has the same order as ``points``.
    spec: the parsed YAML file that requests the kernels.
    """
    return tuple(kernel(point, spec) for point in points)
