"""The layout of a CUDA extend kernel: the query rows of a thread block, and the keys that it works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.target import Target
from pav2gen.family.variant import ExtendVariant
from pav2gen.plan.cuda_hooks import CudaHooks

#: Keys of a thread block.
PARTITION = 512

#: The longest queries for which each byte of the cache is read once.
QUERY_LEN = 8


@dataclass(frozen=True)
class ExtendCudaPlan:
    """Figures of the CUDA kernel."""

    variant: ExtendVariant
    target: Target

    @property
    def partition_size(self) -> int:
        """Keys of a thread block."""
        return PARTITION

    @property
    def query_len(self) -> int:
        """Calls with this max_query_len or less prefer the CUDA kernel."""
        return QUERY_LEN

    @cached_property
    def hooks(self) -> CudaHooks:
        """The hooks: the changes of a score between the product and the softmax."""
        return CudaHooks(self.variant)

    def figures(self) -> dict[str, int | float | str | None]:
        """The figures of the CUDA kernel that ``pav2gen list`` shows."""
        return {"cuda_query_len": self.query_len}


def plan_extend_cuda(variant: ExtendVariant, target: Target, chosen: Mapping[str, int]) -> ExtendCudaPlan:
    """The figures of ``variant`` on ``target``. ``chosen``: the layout settings that a spec fixes."""
    return ExtendCudaPlan(variant, target)
