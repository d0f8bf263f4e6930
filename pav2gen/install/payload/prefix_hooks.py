"""The hook that a patched vLLM calls for a prefill with a cached prefix.

In such a prefill, the KV cache already has the keys and values of the first tokens of each sequence. Several new tokens
attend to these first tokens.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch

from . import NoKernelError
from .layer_features import Features, active
from .serving import disabled, foreign_codes, lacks, log_once, shape_of, stored, stored_dtype


def serve_prefix(
    *,
    own: str,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    alibi_slopes: torch.Tensor | None,
    kv_cache_dtype: str = "auto",
    sliding_window: int | None = None,
    k_scale: float | torch.Tensor = 1.0,
    v_scale: float | torch.Tensor = 1.0,
) -> torch.Tensor | None:
    """Run the generated extend operator in place of vLLM's own ``forward_prefix``.

    Returns the attention output, in the shape of ``query``, or None if vLLM must run its own ``forward_prefix``.

    own: what vLLM's own ``forward_prefix`` does. "works": the function computes the result. "hangs": the function runs
    a Triton kernel that hangs the GPU. "none": the function only raises an error.
    query: [new tokens of all sequences, query heads, head size]. The new tokens of sequence s are the rows
    query_start_loc[s] to query_start_loc[s + 1] - 1.
    key_cache, value_cache: the KV cache in vLLM's layout. The cache already contains the keys and values of the new
    tokens.
    query_start_loc: [sequences + 1], the first row of each sequence in ``query``, then the number of rows.
    seq_lens: [sequences] int32, the number of tokens of each sequence, including the new tokens.
    max_query_len: the largest number of new tokens of a sequence.

    If no generated kernel takes the call, vLLM must run its own function. If vLLM's own function does not work, or
    would ignore a feature of the layer, this hook raises NoKernelError or ValueError with the reason.
    """
    if disabled():
        return None
    features = with_window(active(), sliding_window)
    shape = shape_of(query, key_cache, kv_cache_dtype, alibi_slopes, 0, features)
    reason = lacks(EXTEND, **shape)
    must = own != "works" or features.required or foreign_codes(kv_cache_dtype)
    if not reason:
        try:
            return extend(
                query, key_cache, value_cache, kv_cache_dtype, features,
                block_tables=block_tables, query_start_loc=query_start_loc, seq_lens=seq_lens,
                max_query_len=max_query_len, alibi_slopes=alibi_slopes, k_scale=k_scale, v_scale=v_scale,
            )  # fmt: skip
        except (ValueError, NoKernelError) as error:  # refused before anything was written
            if must:
                raise
            reason = str(error)
    if must:
        raise NoKernelError(f"{reason}. {WHY[own]}")
    log_once(logging.WARNING, f"{reason}; vLLM's own path serves it", ("serve_prefix", *shape.items()))
    return None


def with_window(features: Features, sliding_window: int | None) -> Features:
    """Return ``features`` with the sliding window of a call, if the call has one.

    sliding_window: the window in tokens. vLLM passes 0, -1 or None if there is no window.
    """
    return features._replace(sliding_window=sliding_window) if (sliding_window or 0) > 0 else features


def extend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    kv_cache_dtype: str,
    features: Features,
    *,
    block_tables: torch.Tensor,
    **call: Any,
) -> torch.Tensor:
    """Call the generated operator ``paged_attention_extend``. Return its output, in the shape and dtype of ``query``.

    query: [new tokens of all sequences, query heads, head size].
    kv_cache_dtype: vLLM's name for the cache dtype.
    features: the softcap, the window and similar features of the layer that makes the call.
    call: the other arguments of the operator, by their names.

    Raises ValueError or NoKernelError for a call that no kernel takes.
    """
    out, page = torch.empty(query.shape, dtype=query.dtype, device=query.device), key_cache.shape[3]
    operator = getattr(importlib.import_module(__package__), EXTEND)
    operator(
        out=out,
        query=query,
        key_cache=stored(key_cache, kv_cache_dtype),
        value_cache=stored(value_cache, kv_cache_dtype),
        num_kv_heads=key_cache.shape[1],
        scale=features.scale or query.shape[2] ** -0.5,
        block_tables=block_tables,
        block_size=page,
        max_seq_len=block_tables.shape[1] * page,
        kv_cache_dtype=stored_dtype(kv_cache_dtype),
        **call,
        **features.arguments(),
    )
    return out


#: The name of the extend operator in a generated package.
EXTEND = "paged_attention_extend"

#: Maps the argument ``own`` of ``serve_prefix`` to the reason why vLLM's own function cannot replace a missing kernel.
WHY = {
    "works": "vLLM's own path would compute without what the layer asks for",
    "hangs": "vLLM's own path is a Triton kernel, which hangs this card; PAV2_DISABLE=1 runs it anyway",
    "none": "vLLM's own path is not implemented here",
}
