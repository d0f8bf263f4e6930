"""Answers questions of a vLLM fork: whether kernels serve a model, and whether a decode should take this operator.

A fork here is a vLLM tree into which a generated package was installed. "V2" is this package's operator, and "V1" is
the fork's own kernel for short sequences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch

from . import check
from .select import Key, NoKernelError, Table, own_key

NAME = "check_model"


class Models:
    """Gives the answers, from the dispatch tables. ``load`` is called to compile and load the CUDA kernels."""

    def __init__(self, tables: Mapping[str, Table], load: Callable[[], object]) -> None:
        self._tables = tables
        self._table = tables["decode"]
        self._load = load

    def supports(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        block_size: int,
        dtype: torch.dtype | str,
        kv_cache_dtype: str = "auto",
        alibi: bool = False,
        blocksparse: bool = False,
        *,
        softcap: float | None = None,
        sliding_window: int | None = None,
        sinks: bool = False,
        modification: str | None = None,
        operator: str = "decode",
    ) -> bool:
        """Whether a kernel serves one tensor-parallel rank with these numbers of heads. Never raises.

        operator: "decode", "extend" for ``paged_attention_extend``, or "cache" for ``reshape_and_cache``. The latter
        ignores the query heads and the features.
        """
        try:
            features = (alibi, blocksparse, softcap, sliding_window, sinks, modification)
            key = rank_key(num_heads, num_kv_heads, head_size, block_size, dtype, kv_cache_dtype, *features)
            self._serving(key, operator)
        except (ValueError, TypeError, KeyError, NoKernelError):
            return False
        return True

    def check_model(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        block_size: int,
        dtype: torch.dtype | str,
        kv_cache_dtype: str = "auto",
        tp_size: int = 1,
        alibi: bool = False,
        blocksparse: bool = False,
        *,
        softcap: float | None = None,
        sliding_window: int | None = None,
        sinks: bool = False,
        modification: str | None = None,
        operator: str = "decode",
    ) -> None:
        """Check that kernels serve a model, and load the CUDA kernels. A fork calls this when it loads a model.

        The numbers of heads are those of the whole model. Loading here means that no compiler runs at the first long
        call. Raises NoKernelError if no kernel of ``operator`` serves a rank. Raises ValueError if the ranks cannot
        share the heads evenly, or if the operator does not exist.
        """
        if operator not in self._tables:
            check.fail(f"operator {operator!r} is none of {', '.join(self._tables)}", NAME)
        heads, kv_heads = shard(num_heads, num_kv_heads, tp_size)
        features = (alibi, blocksparse, softcap, sliding_window, sinks, modification)
        key = rank_key(heads, kv_heads, head_size, block_size, dtype, kv_cache_dtype, *features)
        self._serving(key, operator)
        self._load()

    def _serving(self, key: Key, operator: str) -> None:
        """Raise NoKernelError if no kernel of ``operator`` serves attention layers of ``key``."""
        self._tables[operator].serving(own_key(key, operator))

    def prefer_v2(
        self,
        max_seq_len: int,
        num_seqs: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        block_size: int,
        dtype: torch.dtype | str,
        kv_cache_dtype: str = "auto",
        alibi: bool = False,
        blocksparse: bool = False,
        *,
        softcap: float | None = None,
        sliding_window: int | None = None,
        sinks: bool = False,
        modification: str | None = None,
    ) -> bool:
        """Whether a decode should take V2: a kernel serves it, and it is longer than the spec's ``min_seq_len``.

        A shorter decode takes V2 too if V1 of the BI-V100 fork would ignore a part of it: a compressed cache, or a
        feature other than ALiBi. The result is False under PAV2_DISABLE=1. It depends only on host values. Never
        raises.
        """
        if os.environ.get("PAV2_DISABLE", "") == "1" or num_seqs == 0:
            return False
        try:
            features = (alibi, blocksparse, softcap, sliding_window, sinks, modification)
            key = rank_key(num_heads, num_kv_heads, head_size, block_size, dtype, kv_cache_dtype, *features)
            row = self._table.serving(key)[0]
            dropped = not key._replace(alibi=False).is_plain or key.kv_cache_dtype != "auto"
            return max_seq_len > row.min_seq_len or dropped
        except (ValueError, TypeError, NoKernelError):
            return False


def shard(num_heads: int, num_kv_heads: int, tp_size: int) -> tuple[int, int]:
    """(query heads, KV heads) of one rank, as vLLM shards them. Several ranks may share a KV head."""
    counted = tp_size > 0 and num_kv_heads > 0 and num_heads % tp_size == 0
    if not counted or (num_kv_heads % tp_size and tp_size % num_kv_heads):
        check.fail(f"{num_heads} query and {num_kv_heads} KV heads cannot be shared out among {tp_size} ranks", NAME)
    return num_heads // tp_size, max(1, num_kv_heads // tp_size)


def rank_key(
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    dtype: torch.dtype | str,
    kv_cache_dtype: str,
    alibi: bool,
    blocksparse: bool,
    softcap: float | None,
    sliding_window: int | None,
    sinks: bool,
    modification: str | None,
) -> Key:
    """The key of the attention layers of one rank. Raises ValueError for numbers or dtypes that no kernel takes."""
    if num_kv_heads <= 0 or num_heads % num_kv_heads:
        check.fail(f"{num_heads} query heads cannot be shared out among {num_kv_heads} KV heads", NAME)
    return Key(
        head_size=head_size,
        gqa_ratio=num_heads // num_kv_heads,
        block_size=block_size,
        dtype=check.dtype_name(dtype),
        kv_cache_dtype=check.kv_dtype(kv_cache_dtype, NAME),
        alibi=alibi,
        blocksparse=blocksparse,
        softcap=None if softcap is None else float(softcap),
        sliding_window=sliding_window,
        sinks=sinks,
        modification=modification,
    )
