"""Computes the plan of an extend kernel, for its PyTorch version and its CUDA version."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.spec import Spec
from pav2gen.family.variant import ExtendVariant
from pav2gen.plan.attention_plan import AttentionPlan
from pav2gen.plan.extend_cuda import ExtendCudaPlan, plan_extend_cuda
from pav2gen.plan.extend_torch import ExtendTorchPlan
from pav2gen.runtime.choice.dispatch_row import MIB, Row


@dataclass(frozen=True)
class ExtendPlan(AttentionPlan):
    """The plan of one extend kernel, for its PyTorch version and its CUDA version."""

    variant: ExtendVariant
    torch: ExtendTorchPlan

    @cached_property
    def cuda(self) -> ExtendCudaPlan:
        """The computed sizes and costs of the kernel's CUDA version."""
        return plan_extend_cuda(self.variant, self.spec.target)

    @cached_property
    def figures(self) -> dict[str, int | float | str | None]:
        """The values that ``pav2gen list`` prints for this kernel, as a dict from column name to value."""
        return {
            "heads": f"{self.rank.num_heads}/{self.rank.num_kv_heads}",
            "workspace_mib": self.spec.limits.workspace_mib,
            **(self.torch.figures() if "torch" in self.spec.backends else {}),
            **(self.cuda.figures() if "cuda" in self.spec.backends else {}),
        }

    def row(self) -> Row:
        """Return the kernel's row in the dispatch table, from which the runtime chooses a kernel for each call."""
        if "cuda" not in self.spec.backends:
            return self.base_row(0)
        row = self.base_row(self.cuda.partition_size)
        return row._replace(
            blocks_per_group=self.cuda.blocks_per_group,
            tile_tokens=self.cuda.geometry.tokens,
            cuda_query_len=self.cuda.query_len,
        )


def plan_extend(variant: ExtendVariant, spec: Spec) -> ExtendPlan:
    """Compute the plan of the extend kernel ``variant``.

    ``spec`` provides the GPU's properties and the workspace limit, that is, the limit on the memory for temporary
    buffers.
    """
    return ExtendPlan(variant, spec, ExtendTorchPlan(variant, spec.limits.workspace_mib * MIB))
