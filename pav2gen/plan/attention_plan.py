"""Computes texts, head counts and dispatch table rows, for decode kernels and for extend kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.axes import title
from pav2gen.family.spec import RankShape, Spec
from pav2gen.family.variant import AttentionVariant
from pav2gen.runtime.choice.dispatch_row import Row


@dataclass(frozen=True)
class AttentionPlan:
    """The base class of the plans of decode kernels and extend kernels."""

    variant: AttentionVariant
    spec: Spec

    @property
    def title(self) -> str:
        """The properties of the calls that this kernel can handle, in words, such as the head size and the dtype.

        The comment at the top of each kernel source contains the title.
        """
        return title(self.variant.key._asdict())

    @property
    def formula(self) -> str:
        """The formula of the attention scores before the softmax, as text.

        The comment at the top of each kernel source contains the formula.
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
        """The numbers of query heads and KV heads on one tensor-parallel rank.

        The property uses the first tensor-parallel size in the spec that gives each KV head ``gqa_ratio`` query heads.
        If no size in the spec gives the ratio ``gqa_ratio``, the result is a single rank with all KV heads of the
        model.
        """
        model, ratio = self.spec.model, self.variant.gqa_ratio
        ranks = (rank for rank in model.ranks() if rank.gqa_ratio == ratio)
        return next(ranks, RankShape(1, model.num_kv_heads * ratio, model.num_kv_heads))

    @property
    def kv_bytes_per_token(self) -> int:
        """The size in bytes of the keys and values of one token in one layer, for all KV heads of one tensor-parallel
        rank.
        """
        return self.variant.kv_token_bytes * self.rank.num_kv_heads

    def base_row(self, partition_size: int) -> Row:
        """Return the kernel's row in the dispatch table, without the values that the plan of the CUDA version adds.

        partition_size: the number of tokens in a partition.
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
