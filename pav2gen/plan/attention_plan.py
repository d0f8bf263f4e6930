"""What the plans of decode kernels and of extend kernels have in common: texts for the comment at the top of a source,
the numbers of heads on one rank, and the row in the dispatch table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.axes import title
from pav2gen.family.spec import RankShape, Spec
from pav2gen.family.variant import AttentionVariant
from pav2gen.runtime.choice.dispatch_row import Row


@dataclass(frozen=True)
class AttentionPlan:
    """The texts, head numbers and dispatch row that the plans of decode and extend kernels have in common."""

    variant: AttentionVariant
    spec: Spec

    @property
    def title(self) -> str:
        """The axis values that a call must have to use this kernel, in words. This text goes into the comment at the
        top of each of its sources.
        """
        return title(self.variant.key._asdict())

    @property
    def formula(self) -> str:
        """The formula of the scores that the softmax is applied to, as text. The formula goes into the comment at the
        top of each source of the kernel.
        """
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
        """The numbers of query heads and KV heads on one tensor-parallel rank. The tensor-parallel size is the first
        one in the spec with which the ratio of these numbers is this kernel's ``gqa_ratio``.

        If there is no such tensor-parallel size, the result is a single rank with all KV heads of the model.
        """
        model, ratio = self.spec.model, self.variant.gqa_ratio
        ranks = (rank for rank in model.ranks() if rank.gqa_ratio == ratio)
        return next(ranks, RankShape(1, model.num_kv_heads * ratio, model.num_kv_heads))

    @property
    def kv_bytes_per_token(self) -> int:
        """The size in bytes of the keys and values of one token in one layer, for all KV heads of one rank."""
        return self.variant.kv_token_bytes * self.rank.num_kv_heads

    def base_row(self, partition_size: int) -> Row:
        """Return the kernel's row in the dispatch table. The fields that come from the plan of the CUDA version have
        their default values.

        partition_size: the value of the field ``partition_size`` of the row.
        """
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
