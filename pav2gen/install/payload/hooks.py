"""What a patched vLLM calls: the choice between V1 and V2, the kernels behind V2, and a word at model load.

``pav2gen install`` puts this file beside the kernels, and the calls of it into vLLM; ``pav2gen wheel`` packs it with a
plugin that makes the same calls at run time. PAV2_DISABLE=1 gives vLLM's own path back, as if nothing were here.
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

#: Below vLLM's own logger, so that its handler and its level hold.
logger = logging.getLogger("vllm.pav2")

#: Above so many tokens vLLM's own rule leaves V1, which keeps the logits of a whole sequence in shared memory.
V1_LIMIT = 8192


def choose_v1(
    use_v1: bool,
    *,
    v1: str,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    max_seq_len: int,
    kv_cache_dtype: str,
    alibi_slopes: torch.Tensor | None,
    blocksparse_vert_stride: int | None = 0,
) -> bool:
    """Whether a decode takes V1. ``use_v1`` is vLLM's own choice; it stands where no kernel of ours serves the shape.

    v1: what the tree's V1 is. "whole" takes all that is asked of it; "plain" is called without kv_cache_dtype and the
    block-sparse pattern, which it would drop in silence; "none" only raises. query: [seqs, heads, head size].
    key_cache: [blocks, kv heads, head size / x, block size, x]. Depends on host values alone.

    Where a kernel serves the shape, V2 is taken if ``prefer_v2`` says so, and up to the kernel's min_seq_len V1 stays.
    """
    if disabled():
        return use_v1
    shape = shape_of(query, key_cache, kv_cache_dtype, alibi_slopes, blocksparse_vert_stride)
    if prefer_v2(max_seq_len, query.shape[0], **shape):
        return False
    dropped = kv_cache_dtype != "auto" or shape["blocksparse"]
    if v1 == "none" or (v1 == "plain" and dropped):
        return False  # V2 serves it, or says why not
    if not supports(**shape):
        log_once(logging.WARNING, f"{miss(**shape)}; vLLM's own choice between V1 and V2 stands")
        return use_v1
    return use_v1 or max_seq_len <= V1_LIMIT


def serve_v2(*, fallback: bool, **call: Any) -> bool:
    """Run the operator on ``call``, the arguments of ``paged_attention_v2`` by name. False leaves the call to vLLM.

    fallback: whether vLLM has a V2 of its own, which then serves what no kernel of ours does; without one, the
    NoKernelError of the operator is the answer.
    """
    if disabled():
        return False
    if fallback:
        sparse = call.get("blocksparse_vert_stride")
        shape = shape_of(call["query"], call["key_cache"], call["kv_cache_dtype"], call["alibi_slopes"], sparse)
        if not supports(**shape):
            log_once(logging.WARNING, f"{miss(**shape)}; vLLM's own V2 serves it")
            return False
    paged_attention_v2(**call)
    return True


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

    impl: the layer's backend; only those that decode by ``PagedAttention`` are looked at. The rest are arguments of
    vLLM's ``Attention``: the heads of one rank, and the model's dtype is torch's default one meanwhile.
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
    """The arguments of ``supports`` for a call, read off its tensors: ``num_kv_heads`` may be a tensor in a fork."""
    return {
        "num_heads": query.shape[1],
        "num_kv_heads": key_cache.shape[1],
        "head_size": query.shape[2],
        "block_size": key_cache.shape[3],
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
    """Why no kernel serves a rank of ``shape``, in a sentence; empty where one does, whose library is then loaded.

    A library that was installed with the kernels is taken, unless PAV2_LIBRARY names another.
    """
    for library in sorted(Path(__file__).parent.glob("prebuilt/*.so")):
        os.environ.setdefault("PAV2_LIBRARY", str(library))
    try:
        check_model(tp_size=1, **shape)
    except (ValueError, NoKernelError) as error:
        return str(error)
    return ""


@functools.cache
def log_once(level: int, message: str) -> None:
    """Log a message the first time that it comes up in this process."""
    logger.log(level, "pav2: %s", message)
