"""Answers a fork's questions about a model, at loading and at each decode."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch

from . import check
from .select import KEYS, Key, NoKernelError, Table


class Models:
    """Answers from the tables of the operators. ``load`` compiles and loads their CUDA kernels."""

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
        """Whether a kernel serves a rank with these heads (of the rank, not of the model). Never raises.

        operator: "decode"; "extend" for ``paged_attention_extend``; or "cache" for ``reshape_and_cache``, to which the
        query heads and features don't matter.
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
        """Call this when a model is loaded, with the heads of the whole model and its tensor-parallel size.

        Raises NoKernelError if no kernel of ``operator`` serves a rank, ValueError if the heads cannot be shared out or
        the operator does not exist. Then it loads the CUDA kernels, so that no compiler runs at the first long call.
        """
        if operator not in self._tables:
            check.fail(f"operator {operator!r} is none of {', '.join(self._tables)}")
        heads, kv_heads = shard(num_heads, num_kv_heads, tp_size)
        features = (alibi, blocksparse, softcap, sliding_window, sinks, modification)
        key = rank_key(heads, kv_heads, head_size, block_size, dtype, kv_cache_dtype, *features)
        self._serving(key, operator)
        self._load()

    def _serving(self, key: Key, operator: str) -> None:
        """Raise NoKernelError if no kernel of ``operator`` serves attention layers of ``key``."""
        own = KEYS[operator]
        self._tables[operator].serving(own(*(getattr(key, axis) for axis in own._fields)))

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
        """Whether a decode should take V2: it is served, and longer than the spec's ``dispatch.min_seq_len``.

        Shorter ones take V2 too where the V1 of the BI-V100 fork would drop what is asked: a compressed cache, or a
        feature other than ALiBi. False under PAV2_DISABLE=1. Depends on host values alone; never raises.
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
    """(query heads, KV heads) of one rank, as vLLM shards them: KV heads are replicated beyond their number."""
    counted = tp_size > 0 and num_kv_heads > 0 and num_heads % tp_size == 0
    if not counted or (num_kv_heads % tp_size and tp_size % num_kv_heads):
        check.fail(f"{num_heads} query and {num_kv_heads} KV heads cannot be shared out among {tp_size} ranks")
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
    """The key of the attention layers of one rank. Raises ValueError for what no kernel takes."""
    if num_kv_heads <= 0 or num_heads % num_kv_heads:
        check.fail(f"{num_heads} query heads cannot be shared out among {num_kv_heads} KV heads")
    return Key(
        head_size=head_size,
        gqa_ratio=num_heads // num_kv_heads,
        block_size=block_size,
        dtype=check.dtype_name(dtype),
        kv_cache_dtype=check.kv_dtype(kv_cache_dtype),
        alibi=alibi,
        blocksparse=blocksparse,
        softcap=None if softcap is None else float(softcap),
        sliding_window=sliding_window,
        sinks=sinks,
        modification=modification,
    )
