"""The part of a plan that decode and extend kernels have in common: texts for a source's header, and sizes on one
rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.axes import title
from pav2gen.family.spec import RankShape, Spec
from pav2gen.family.variant import AttentionVariant
from pav2gen.runtime.dispatch_row import Row


@dataclass(frozen=True)
class AttentionPlan:
    """The part of a plan that decode and extend kernels have in common."""

    variant: AttentionVariant
    spec: Spec

    @property
    def title(self) -> str:
        """The axis values that a call must match, in words, for the comment at the top of a source."""
        return title(self.variant.key._asdict())

    @property
    def formula(self) -> str:
        """The argument of the softmax as a formula, for the comment at the top of a source."""
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
        """The numbers of heads on one rank, for the first tensor-parallel size in the spec that has this kernel's
        ``gqa_ratio``.

        If no tensor-parallel size has this ratio, the result is one rank with all KV heads of the model.
        """
        model, ratio = self.spec.model, self.variant.gqa_ratio
        ranks = (rank for rank in model.ranks() if rank.gqa_ratio == ratio)
        return next(ranks, RankShape(1, model.num_kv_heads * ratio, model.num_kv_heads))

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V per token and layer on one rank."""
        return 2 * self.variant.head_size * self.variant.cache_item_bytes * self.rank.num_kv_heads

    def base_row(self, partition_size: int) -> Row:
        """The kernel's row in the dispatch table, with the default in each field that describes the CUDA kernel."""
        v, dispatch, target = self.variant, self.spec.dispatch, self.spec.target
        return Row(
            symbol=v.symbol,
            spec=v.spec,
            key=v.key,
            partition_size=partition_size,
            torch=v.torch_path.removesuffix(".py").replace("/", ".") if "torch" in self.spec.backends else "",
            cuda=v.cuda_path if "cuda" in self.spec.backends else "",
            min_seq_len=dispatch.min_seq_len,
            fixed_partition=dispatch.partition or 0,
            multiprocessors=target.multiprocessors or 0,
            workspace_mib=self.spec.limits.workspace_mib,
            operator=v.operator,
            host_lengths=dispatch.host_lengths,
            modification=v.own.for_table() if v.own else None,
        )
