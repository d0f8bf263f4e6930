"""The functions (hooks) that a patched vLLM calls for each decode, and for each attention layer of a model when vLLM
makes the layer.

The hooks choose between vLLM's operators ``paged_attention_v1`` (V1) and ``paged_attention_v2`` (V2), run generated
kernels in place of V2, and report which kernels serve a layer.

``pav2gen install`` puts this file beside the kernels, and calls of the hooks into vLLM's files. The plugin of ``pav2gen
wheel`` makes the same calls without a change of vLLM's files. If the environment variable PAV2_DISABLE is 1, all hooks
leave the work to vLLM's own code.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch

from . import NoKernelError, paged_attention_v2, prefer_v2, supports
from .cache_hooks import check_writer
from .layer_features import NONE, Features, active, wrap_forward
from .serving import (
    disabled,
    foreign_codes,
    lacks,
    log_once,
    miss,
    refusal,
    shape_of,
    stored,
    stored_dtype,
)
from .softcap_hooks import TAKEN, require_softcap

#: The number of tokens of a sequence above which vLLM itself never takes V1. (V1 keeps the scores of a whole sequence
#: in shared memory.)
V1_LIMIT = 8192


def choose_v1(
    use_v1: bool,
    *,
    v1: str,
    v2: str,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    kv_cache_dtype: str,
    alibi_slopes: torch.Tensor | None,
    blocksparse_vert_stride: int | None = 0,
) -> bool:
    """Return whether vLLM must decode with ``paged_attention_v1`` (V1), and not with ``paged_attention_v2`` (V2).

    A patched V2 runs the generated kernels.

    use_v1: whether vLLM itself has chosen V1.
    v1: whether vLLM's own V1 works. "whole": with all arguments. "plain": V1 works, but vLLM calls V1 without
    kv_cache_dtype or without the block-sparse pattern. "none": V1 only raises an error.
    v2: "stub" if vLLM's own V2 only raises an error. "works" if V2, or another kernel that vLLM calls in its place,
    computes the result.
    query: [sequences, query heads, head size], one new token of each sequence.
    key_cache: [blocks, KV heads, head size / x, block size, x], where x is the number of elements in 16 bytes.

    The answer is False if V1 only raises an error, or would ignore an argument of the call or a feature of its layer.
    The answer is also False if a generated kernel takes the call and the package's ``prefer_v2`` returns True.

    In all other cases, the answer is ``use_v1``, with one exception: If a generated kernel takes the call, vLLM's own
    V2 is a stub, and no sequence is longer than ``V1_LIMIT`` tokens, the answer is True.

    The answer does not depend on the elements of the tensors. So the answer stays valid in a captured CUDA graph.
    """
    if disabled():
        return use_v1
    features = active()
    shape = shape_of(query, key_cache, kv_cache_dtype, alibi_slopes, blocksparse_vert_stride, features)
    preferred = prefer_v2(max_seq_len, query.shape[0], **shape)
    reason = "" if preferred or supports(**shape) else miss(**shape)
    if not reason and preferred:
        reason = refusal(
            query, key_cache, value_cache, block_tables, seq_lens, max_seq_len, alibi_slopes, kv_cache_dtype
        )
    if v1_ignores(v1, kv_cache_dtype, shape["blocksparse"], features) or (preferred and not reason):
        return False  # V2 serves the call, or says why it cannot
    if reason:
        log_once(logging.WARNING, f"{reason}; vLLM itself chooses between V1 and V2", ("choose_v1", *shape.items()))
        return use_v1
    return use_v1 or (v2 == "stub" and max_seq_len <= V1_LIMIT)


def v1_ignores(v1: str, kv_cache_dtype: str, blocksparse: bool, features: Features) -> bool:
    """Whether vLLM's ``paged_attention_v1`` would fail, or ignore an argument of a call or a feature of its layer.

    v1: whether this operator works, as in ``choose_v1``.
    blocksparse: whether the call has a block-sparse pattern.
    features: the softcap, the window and similar features of the layer that makes the call.
    """
    plain = v1 == "plain" and (kv_cache_dtype != "auto" or blocksparse)
    return v1 == "none" or plain or features.required or foreign_codes(kv_cache_dtype)


def serve_v2(*, fallback: bool, **call: Any) -> bool:
    """Run the generated ``paged_attention_v2`` with the arguments ``call``, or leave the call to vLLM's own operator.

    Returns True if the generated operator has run, and False if vLLM must run its own operator.

    fallback: whether vLLM's own operator works. If so, vLLM's operator serves the calls that no generated kernel takes,
    and the calls for which the package's ``prefer_v2`` returns False.

    If vLLM's own operator does not work, or would ignore a feature of the layer that makes the call, the generated
    operator always runs. The generated operator raises ValueError or NoKernelError for a call that no generated kernel
    takes.
    """
    if disabled():
        return False
    features, named = active(), call["kv_cache_dtype"]
    given = {
        **call,
        **features.arguments(),
        "kv_cache_dtype": stored_dtype(named),
        "key_cache": stored(call["key_cache"], named),
        "value_cache": stored(call["value_cache"], named),
    }
    if not fallback or features.required or foreign_codes(named):
        paged_attention_v2(**given)
        return True
    query, sparse = call["query"], call.get("blocksparse_vert_stride")
    shape = shape_of(query, call["key_cache"], named, call["alibi_slopes"], sparse, features)
    reason = "" if supports(**shape) else miss(**shape)
    if not reason and not prefer_v2(call["max_seq_len"], query.shape[0], **shape):
        return False
    try:
        if not reason:
            paged_attention_v2(**given)
            return True
    except (ValueError, NoKernelError) as error:  # refused before anything was written
        reason = str(error)
    log_once(logging.WARNING, f"{reason}; vLLM's own V2 serves it", ("serve_v2", *shape.items()))
    return False


def check_layer(
    impl: Any,
    *,
    num_heads: int,
    num_kv_heads: int | None,
    head_size: int,
    alibi_slopes: Any,
    cache_config: Any,
    blocksparse_params: Any = None,
    logits_soft_cap: float | None = None,
    per_layer_sliding_window: int | None = None,
    writer: str = "",
    prefix: str = "",
) -> None:
    """Log which generated operators serve an attention layer, and prepare the layer for the other hooks.

    A patched vLLM calls this function at the end of the layer's constructor.

    impl: the layer's backend object (its attribute ``impl``). If the backend does not use ``PagedAttention``, nothing
    is done.
    writer, prefix: as in ``report``.

    The other arguments have the values that the layer's constructor received. The numbers of heads count the heads of
    one tensor-parallel rank. The dtype of the layer is torch's default dtype, which vLLM sets while it loads a model.

    A layer may use features that vLLM does not pass to its operators, such as a softcap (a limit on scores). Therefore
    this function wraps ``impl.forward``, so that the hooks know these features while ``impl.forward`` runs.

    Raises ValueError for a layer that neither vLLM nor the generated kernels can serve.
    """
    if disabled() or not hasattr(sys.modules.get(type(impl).__module__), "PagedAttention"):
        return
    window = per_layer_sliding_window or getattr(cache_config, "sliding_window", None)
    features = layer_features(impl, head_size, getattr(impl, TAKEN, logits_soft_cap), window)
    named = getattr(cache_config, "cache_dtype", "auto")
    shape = {
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads or num_heads,
        "head_size": head_size,
        "block_size": getattr(cache_config, "block_size", None) or 16,
        "dtype": torch.get_default_dtype(),
        "kv_cache_dtype": stored_dtype(named),
        "alibi": alibi_slopes is not None,
        "blocksparse": (blocksparse_params or {}).get("vert_stride", 0) > 1,
        **features.key(),
    }
    if features.softcap is not None:
        features = require_softcap(impl, shape, features)
    if features != NONE:
        wrap_forward(impl, features)
    check_writer(named)
    report(shape, writer, prefix)


def layer_features(impl: Any, head_size: int, softcap: float | None, window: Any) -> Features:
    """Return the features of a layer that vLLM does not pass to its operators.

    impl: the layer's backend object (its attribute ``impl``), from which the scale and the sinks are read.
    softcap: the layer's limit on scores. None and 0 mean that the layer has no limit.
    window: the layer's sliding window in tokens. None and 0 mean that the layer has no sliding window. A value of
    another type, such as a list, is converted to text.
    """
    scale = getattr(impl, "scale", None)
    usual = not isinstance(scale, float) or abs(scale - head_size**-0.5) <= 1e-6 * abs(scale)
    return Features(
        softcap=softcap or None,
        sliding_window=(window if isinstance(window, int) else str(window)) if window else None,
        sinks=getattr(impl, "sinks", None),
        scale=None if usual else scale,
    )


def report(shape: dict[str, Any], writer: str, prefix: str) -> None:
    """Log which generated operators serve a layer, and which kernels are missing. Layers with the same values are
    logged once.

    shape: the arguments of the package's ``supports`` that describe the layer.
    writer: the argument ``writer`` of the hook ``serve_write``, or empty if this vLLM does not call that hook.
    prefix: the argument ``own`` of the hook ``serve_prefix``, or empty if this vLLM does not call that hook.
    """
    text = " ".join(f"{name}={shape[name]}" for name in shape)
    if without := miss(**shape):
        log_once(logging.WARNING, f"{without}; decodes of these layers stay on vLLM's own path")
    else:
        log_once(logging.INFO, f"generated kernels serve {text}")
    compressed = shape["kv_cache_dtype"] != "auto" and writer in ("plain", "none")
    if compressed and (without := lacks("reshape_and_cache", **shape)):
        log_once(logging.WARNING, f"{without}; nothing else can fill the {shape['kv_cache_dtype']} cache")
    if without := lacks("paged_attention_extend", **shape):
        if prefix in ("hangs", "none"):
            log_once(logging.WARNING, f"{without}; a prefill with a cached prefix is an error")
        else:
            log_once(logging.INFO, f"{without}; prefills with a cached prefix stay on vLLM's own path")
