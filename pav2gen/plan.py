"""What a variant costs: every derived number of a kernel, computed once, here.

Templates hold these numbers as literals, `pav2gen list` shows them, and tests hold the kernels to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.cuda_plan import CudaPlan, plan_cuda
from pav2gen.runtime.tiling import Budget
from pav2gen.spec import RankShape, Spec
from pav2gen.torch_plan import MIB, TorchPlan
from pav2gen.variant import Variant


@dataclass(frozen=True)
class Plan:
    """All figures of one kernel."""

    variant: Variant
    spec: Spec
    torch: TorchPlan

    @cached_property
    def cuda(self) -> CudaPlan:
        """The figures of the CUDA kernel; made when they are asked for."""
        return plan_cuda(self.variant, self.spec.target, self.spec.cuda)

    @property
    def title(self) -> str:
        """The key in words, for the head of a source."""
        v = self.variant
        heads = f"{v.gqa_ratio} query heads for each KV head" if v.gqa_ratio > 1 else "one query head for each KV head"
        cache = "" if v.kv_cache_dtype == "auto" else f", {v.kv_cache_dtype} cache"
        extras = (", ALiBi" if v.alibi else "") + (", block-sparse" if v.blocksparse else "")
        return f"head size {v.head_size}, {heads}, pages of {v.block_size}, {v.dtype}{cache}{extras}"

    @cached_property
    def rank(self) -> RankShape:
        """The heads of the rank that this kernel serves: of the smallest tensor-parallel size with its ratio."""
        model, ratio = self.spec.model, self.variant.gqa_ratio
        ranks = (rank for rank in model.ranks() if rank.gqa_ratio == ratio)
        return next(ranks, RankShape(1, model.num_kv_heads * ratio, model.num_kv_heads))

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in one layer, for the rank."""
        return 2 * self.variant.head_size * self.variant.cache_item_bytes * self.rank.num_kv_heads

    def torch_calls(self, num_seqs: int, max_seq_len: int, budget: Budget) -> int:
        """ATen calls that are no views, for the rank's KV heads."""
        tiling = budget.fit(num_seqs, max_seq_len, self.rank.num_kv_heads, self.variant.partition_size)
        return self.torch.calls(tiling)

    @property
    def boundary_lengths(self) -> list[int]:
        """Lengths of the generated tests: around nothing, a page, a partition, both together, two partitions."""
        page, partition = self.variant.block_size, self.variant.partition_size
        edges = (0, page, partition, partition + page, 2 * partition)
        return sorted({max(0, edge + step) for edge in edges for step in (-1, 0, 1)})

    @property
    def sparse_patterns(self) -> list[tuple[int, int, int, int, int]]:
        """Block-sparse patterns of the generated tests: local blocks, stride, block size, sliding step, rank."""
        page = self.variant.block_size
        return [
            (1, 2, page, 0, 0),
            (0, 4, 2 * page, 1, 0),
            (2, 3, 4 * page, 2, 1),
            (1, 5, page, 1, 1),
            (1, 3, page, -1, 1),
        ]

    @property
    def calls_by_sequences(self) -> list[tuple[int, int]]:
        """(sequences, ATen calls on a CPU) for one KV head and two partitions: what the generated tests count."""
        tokens, budget = self.variant.partition_size + 1, self.torch.cpu
        tilings = ((n, budget.fit(n, tokens, 1, self.variant.partition_size)) for n in (1, 2, 16, 256))
        return [(n, self.torch.calls(tiling)) for n, tiling in tilings]

    @cached_property
    def figures(self) -> dict[str, int | float | str | None]:
        """What ``pav2gen list`` shows, for one sequence of the model's full length; None for what is not known."""
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

    def row(self) -> dict[str, object]:
        """The literals of the kernel's row in the dispatch table (runtime/select.Row)."""
        v, dispatch, target = self.variant, self.spec.dispatch, self.spec.target
        return {
            "symbol": v.symbol,
            "spec": v.spec,
            "key": v.key._asdict(),
            "partition_size": v.partition_size,
            "torch": v.torch_path.removesuffix(".py").replace("/", ".") if "torch" in self.spec.backends else "",
            "cuda": v.cuda_path if "cuda" in self.spec.backends else "",
            "min_seq_len": dispatch.min_seq_len,
            "fixed_partition": dispatch.partition or 0,
            "multiprocessors": target.multiprocessors or 0,
            "workspace_mib": self.spec.limits.workspace_mib,
        }


def plan(variant: Variant, spec: Spec) -> Plan:
    """The figures of ``variant`` under the limits and the target of ``spec``."""
    return Plan(variant, spec, TorchPlan(variant, spec.limits.workspace_mib * MIB))


def smallest_workspace_bytes(variant: Variant, num_kv_heads: int) -> int:
    """Bytes of workspace without which the PyTorch kernel cannot hold one partition of all KV heads."""
    return TorchPlan(variant, 0).smallest_workspace(num_kv_heads)
