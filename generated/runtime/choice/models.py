"""Tells a vLLM fork for which models this package has kernels, and which operator a decode step should use.

A fork is a vLLM source tree or installation into which a generated package was installed. "V2" is this package's decode
operator, and "V1" is the fork's own kernel for short sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from .. import check
from ..environment import is_on
from .key import Key, own_key
from .miss import NoKernelError
from .select import Table

NAME = "check_model"


class Models:
    """Tells a vLLM fork which attention layers have kernels in this package, and when to use the decode operator.

    tables: the dispatch table of each operator, by the operator's name.
    load: a function that compiles and loads the CUDA kernels.
    """

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
        """Whether this package has a kernel for the attention layers of one tensor-parallel rank. This method never
        raises.

        num_heads, num_kv_heads: the number of query heads and of KV heads on the rank.
        operator: "decode", "extend" for ``paged_attention_extend``, or "cache" for ``reshape_and_cache``.

        If ``operator`` is "cache", the method ignores the number of query heads and features such as ALiBi.
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
        """Check that this package has a kernel for a model's attention, and load the CUDA kernels.

        A vLLM fork calls this method when it loads a model, so that no later call waits for the compiler.

        Raises NoKernelError if ``operator`` has no kernel for the attention layers of a tensor-parallel rank. Raises
        ValueError if the heads cannot be divided among ``tp_size`` ranks, or if the operator does not exist.

        num_heads, num_kv_heads: the number of query heads and of KV heads in the whole model.
        operator: "decode", "extend" for ``paged_attention_extend``, or "cache" for ``reshape_and_cache``.
        """
        check.check_text("operator", operator, NAME)
        if operator not in self._tables:
            check.fail(f"operator {operator!r} is not one of {', '.join(self._tables)}", NAME)
        heads, kv_heads = shard(num_heads, num_kv_heads, tp_size)
        features = (alibi, blocksparse, softcap, sliding_window, sinks, modification)
        key = rank_key(heads, kv_heads, head_size, block_size, dtype, kv_cache_dtype, *features)
        self._serving(key, operator)
        self._load()

    def _serving(self, key: Key, operator: str) -> None:
        """Raise NoKernelError if ``operator`` has no kernel for attention layers with the properties in ``key``."""
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
        """Whether a decode step should use this package's operator (V2) instead of the fork's own kernel (V1).

        The method returns False if no kernel of this package fits the decode step, or if the step has no sequences. The
        method also returns False if the environment variable PAV2_DISABLE is set. In all other cases, the method
        returns True if ``max_seq_len`` exceeds the ``min_seq_len`` (tokens) of the kernel's row in the dispatch table.
        For a smaller ``max_seq_len``, the method returns True if the cache is compressed, or if the attention uses a
        feature other than ALiBi. V1 of the BI-V100 fork ignores compression and these features.

        This method reads no tensor and never raises.
        """
        if is_on("PAV2_DISABLE") or num_seqs == 0:
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
    """Return the number of query heads and the number of KV heads on one tensor-parallel rank, as vLLM divides the
    heads.

    Several ranks may share a KV head. Raises ValueError if the heads cannot be divided among ``tp_size`` ranks.
    """
    for name, number in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads), ("tp_size", tp_size)):
        check.check_int(name, number, NAME)
    counted = tp_size > 0 and num_kv_heads > 0 and num_heads > 0 and num_heads % tp_size == 0
    if not counted or (num_kv_heads % tp_size and tp_size % num_kv_heads):
        check.fail(
            f"{num_heads} query and {num_kv_heads} KV heads cannot be divided evenly among {tp_size} ranks", NAME
        )
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
    """Return the properties by which the dispatch table finds the kernel for the attention of one tensor-parallel rank.

    Raises ValueError for an argument of a wrong type, or for an unknown kv_cache_dtype. Raises ValueError if the query
    heads cannot be divided evenly among the KV heads.
    """
    sizes = (num_heads, num_kv_heads, head_size, block_size)
    for name, size in zip(("num_heads", "num_kv_heads", "head_size", "block_size"), sizes):
        check.check_int(name, size, NAME)
    for name, flag in (("alibi", alibi), ("blocksparse", blocksparse), ("sinks", sinks)):
        check.check_bool(name, flag, NAME)
    for check_it, name, value in (
        (check.check_number, "softcap", softcap),
        (check.check_int, "sliding_window", sliding_window),
        (check.check_text, "modification", modification),
    ):
        if value is not None:
            check_it(name, value, NAME)
    if num_kv_heads <= 0 or num_heads <= 0 or num_heads % num_kv_heads:
        check.fail(f"{num_heads} query heads cannot be divided evenly among {num_kv_heads} KV heads", NAME)
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
