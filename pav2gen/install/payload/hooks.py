"""What a patched vLLM calls: the choice between V1 and V2, the kernels behind V2, and a report at model load.

``pav2gen install`` puts this file beside the kernels, and the calls of it into vLLM; ``pav2gen wheel`` packs it with a
plugin that makes the same calls at run time. PAV2_DISABLE=1 switches all of them off.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch

from . import NoKernelError, check_model, paged_attention_v2, prefer_v2, supports
from .runtime.call import Call
from .runtime.check import check

#: Below vLLM's own logger, so that its handler and its level hold.
logger = logging.getLogger("vllm.pav2")

#: vLLM's own rule leaves V1 above this many tokens: V1 keeps the scores of a whole sequence in shared memory.
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
    """Whether a decode takes V1. ``use_v1`` is vLLM's own choice; it stands where no kernel of ours takes the call.

    v1: what the tree's V1 can do. "whole" takes every argument; "plain" is called without kv_cache_dtype and the
    block-sparse pattern, and would ignore them; "none" only raises. v2: "works" if the tree's own V2, or another kernel
    in V2's branch, works; "stub" if it only raises. query: [seqs, heads, head size]. key_cache: [blocks, kv heads, head
    size / x, block size, x]. The answer depends on host values alone.

    Where a kernel takes the call, V2 is chosen if ``prefer_v2`` says so. Up to the kernel's min_seq_len the tree's own
    choice stands, except that V1 is chosen in place of a V2 that only raises.
    """
    if disabled():
        return use_v1
    shape = shape_of(query, key_cache, kv_cache_dtype, alibi_slopes, blocksparse_vert_stride)
    ignored = v1 == "none" or (v1 == "plain" and (kv_cache_dtype != "auto" or shape["blocksparse"]))
    preferred = prefer_v2(max_seq_len, query.shape[0], **shape)
    reason = "" if preferred or supports(**shape) else miss(**shape)
    if not reason and preferred:
        reason = refusal(
            query, key_cache, value_cache, block_tables, seq_lens, max_seq_len, alibi_slopes, kv_cache_dtype
        )
    if ignored or (preferred and not reason):
        return False  # V2 serves the call, or says why it cannot
    if reason:
        log_once(
            logging.WARNING, f"{reason}; vLLM's own choice between V1 and V2 stands", ("choose_v1", *shape.items())
        )
        return use_v1
    return use_v1 or (v2 == "stub" and max_seq_len <= V1_LIMIT)


def serve_v2(*, fallback: bool, **call: Any) -> bool:
    """Run the operator on ``call``, the arguments of ``paged_attention_v2`` by name. False leaves the call to vLLM.

    fallback: whether vLLM's own V2 works. It then serves every call that our kernels do not take, and every call that
    is no longer than their min_seq_len. Without a fallback the operator's own error is the answer.
    """
    if disabled():
        return False
    if not fallback:
        paged_attention_v2(**call)
        return True
    query, sparse = call["query"], call.get("blocksparse_vert_stride")
    shape = shape_of(query, call["key_cache"], call["kv_cache_dtype"], call["alibi_slopes"], sparse)
    reason = "" if supports(**shape) else miss(**shape)
    if not reason and not prefer_v2(call["max_seq_len"], query.shape[0], **shape):
        return False
    try:
        if not reason:
            paged_attention_v2(**call)
            return True
    except (ValueError, NoKernelError) as error:  # refused before anything was written
        reason = str(error)
    log_once(logging.WARNING, f"{reason}; vLLM's own V2 serves it", ("serve_v2", *shape.items()))
    return False


def refusal(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    alibi_slopes: torch.Tensor | None,
    kv_cache_dtype: str,
) -> str:
    """Why the operator would refuse these tensors, in a sentence; empty where it takes them.

    ``supports`` knows sizes and dtypes of a model. A tree may still keep its tensors in another layout or dtype.
    """
    call = Call(
        out=torch.empty(query.shape, dtype=query.dtype, device=query.device),
        scratch=None,
        query=query,
        key_cache=key_cache,
        value_cache=value_cache,
        scale=1.0,
        block_tables=block_tables,
        seq_lens=seq_lens,
        max_seq_len=max_seq_len,
        alibi_slopes=alibi_slopes,
        k_scale=1.0,
        v_scale=1.0,
        sparse=None,
    )
    try:
        check(call, kv_cache_dtype)
    except ValueError as error:
        return str(error)
    return ""


def check_layer(
    impl: Any,
    *,
    num_heads: int,
    num_kv_heads: int | None,
    head_size: int,
    alibi_slopes: Any,
    cache_config: Any,
    blocksparse_params: Any = None,
) -> None:
    """Report, when an attention layer is made, whether a kernel serves it; load the CUDA kernels if one does.

    impl: the layer's backend; it is looked at only if it decodes by ``PagedAttention``. The rest are arguments of
    vLLM's ``Attention``, with the heads of one rank. While a model loads, torch's default dtype is the model's.
    """
    if disabled() or not hasattr(sys.modules.get(type(impl).__module__), "PagedAttention"):
        return
    shape = {
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads or num_heads,
        "head_size": head_size,
        "block_size": getattr(cache_config, "block_size", None) or 16,
        "dtype": torch.get_default_dtype(),
        "kv_cache_dtype": getattr(cache_config, "cache_dtype", "auto"),
        "alibi": alibi_slopes is not None,
        "blocksparse": (blocksparse_params or {}).get("vert_stride", 0) > 1,
    }
    missing = miss(**shape)
    if missing:
        log_once(logging.WARNING, f"{missing}; decodes of these layers stay on vLLM's own path")
    else:
        log_once(logging.INFO, "generated kernels serve " + " ".join(f"{name}={shape[name]}" for name in shape))


def shape_of(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    kv_cache_dtype: str,
    alibi_slopes: torch.Tensor | None,
    vert_stride: int | None,
) -> dict[str, Any]:
    """The arguments of ``supports`` for a call, read off its tensors: ``num_kv_heads`` may be a tensor in a fork.

    Tensors with another number of dimensions have no block size, and no kernel supports them.
    """
    known = query.dim() == 3 and key_cache.dim() == 5
    return {
        "num_heads": query.shape[1] if known else 0,
        "num_kv_heads": key_cache.shape[1] if known else 0,
        "head_size": query.shape[2] if known else 0,
        "block_size": key_cache.shape[3] if known else 0,
        "dtype": query.dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "alibi": alibi_slopes is not None,
        "blocksparse": (vert_stride or 0) > 1,
    }


def disabled() -> bool:
    """Whether PAV2_DISABLE=1 asks for vLLM's own path."""
    return os.environ.get("PAV2_DISABLE", "") == "1"


@functools.cache
def miss(**shape: Any) -> str:
    """Why no kernel serves a rank of ``shape``, in a sentence; empty where one does. Its library is loaded then.

    A library that was installed with the kernels is used, unless PAV2_LIBRARY names another.
    """
    if not shape["block_size"]:
        return "the query or the key cache has another number of dimensions than vLLM's"
    for library in sorted(Path(__file__).parent.glob("prebuilt/*.so")):
        os.environ.setdefault("PAV2_LIBRARY", str(library))
    try:
        check_model(tp_size=1, **shape)
    except (ValueError, NoKernelError) as error:
        return str(error)
    return ""


def log_once(level: int, message: str, about: tuple[Any, ...] = ()) -> None:
    """Log a message the first time that it comes up in this process; with ``about``, the first message about that."""
    if (about or message) not in _logged:
        _logged.add(about or message)
        logger.log(level, "pav2: %s", message)


_logged: set[tuple[Any, ...] | str] = set()
