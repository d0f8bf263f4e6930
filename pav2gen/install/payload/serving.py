"""Code that all hooks share. Hooks are the functions that a patched vLLM calls."""

from __future__ import annotations

import functools
import importlib
import logging
import os
from pathlib import Path
from typing import Any

import torch

from . import NoKernelError, check_model, supports
from .layer_features import Features
from .runtime.call import Call
from .runtime.check import check
from .runtime.environment import choice, is_on

#: The logger of the hooks, a child of vLLM's own logger, so that vLLM's handler and level apply.
logger = logging.getLogger("vllm.pav2")

#: Maps each operator of a generated package to its name in a spec's list ``operators``.
OPERATORS = {"paged_attention_v2": "decode", "paged_attention_extend": "extend", "reshape_and_cache": "cache"}

#: The allowed values of the environment variable PAV2_KV_CACHE_DTYPE. The variable sets the dtype of the codes in
#: caches that vLLM calls fp8, so that a vLLM without int8 caches can use int8 codes.
STORED = ("fp8_e4m3", "fp8_e5m2", "int8")


def disabled() -> bool:
    """Whether the environment variable PAV2_DISABLE is on. All hooks then leave the work to vLLM's own code."""
    return is_on("PAV2_DISABLE")


def stored_dtype(kv_cache_dtype: str) -> str:
    """Return the dtype of the codes in a KV cache that vLLM calls ``kv_cache_dtype``.

    If ``kv_cache_dtype`` begins with "fp8" and the environment variable PAV2_KV_CACHE_DTYPE is set, return the
    variable's value. Otherwise, return ``kv_cache_dtype``. Raises ValueError if the variable's value is not in
    ``STORED``.
    """
    return (choice("PAV2_KV_CACHE_DTYPE", STORED) if kv_cache_dtype.startswith("fp8") else "") or kv_cache_dtype


def foreign_codes(kv_cache_dtype: str) -> bool:
    """Whether a cache contains int8 codes although vLLM calls its dtype fp8.

    Only generated kernels can use such a cache.

    kv_cache_dtype: vLLM's name for the cache dtype.
    """
    return stored_dtype(kv_cache_dtype) == "int8" != kv_cache_dtype


def stored(cache: torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    """Return ``cache``. If ``cache`` is a uint8 tensor that contains int8 codes, return a view of ``cache`` as int8.

    kv_cache_dtype: vLLM's name for the cache dtype.
    """
    return cache.view(torch.int8) if foreign_codes(kv_cache_dtype) and cache.dtype == torch.uint8 else cache


def shape_of(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    kv_cache_dtype: str,
    alibi_slopes: torch.Tensor | None,
    vert_stride: int | None,
    features: Features,
) -> dict[str, Any]:
    """Return the keyword arguments of the package's ``supports`` that describe a call of vLLM.

    query: [query tokens, query heads, head size].
    key_cache: [blocks, KV heads, head size / x, block size, x], where x is the number of elements in 16 bytes.
    kv_cache_dtype: vLLM's name for the cache dtype.
    vert_stride: the stride of the block-sparse pattern. The call is block-sparse if the stride is above 1.
    features: the softcap, the window and similar features of the layer that makes the call.

    If the query or the key cache has a different number of dimensions than stated here, all sizes are 0. No kernel has
    such sizes.
    """
    known = query.dim() == 3 and key_cache.dim() == 5
    return {
        "num_heads": query.shape[1] if known else 0,
        "num_kv_heads": key_cache.shape[1] if known else 0,
        "head_size": query.shape[2] if known else 0,
        "block_size": key_cache.shape[3] if known else 0,
        "dtype": query.dtype,
        "kv_cache_dtype": stored_dtype(kv_cache_dtype),
        "alibi": alibi_slopes is not None,
        "blocksparse": (vert_stride or 0) > 1,
        **features.key(),
    }


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
    """Return why the generated decode operator would raise an error for these arguments, or an empty string.

    Unlike ``supports``, this function also checks the memory layout of the tensors.
    """
    call = Call(
        out=torch.empty(query.shape, dtype=query.dtype, device=query.device),
        scratch=None,
        query=query,
        key_cache=stored(key_cache, kv_cache_dtype),
        value_cache=stored(value_cache, kv_cache_dtype),
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
        check(call, stored_dtype(kv_cache_dtype))
    except ValueError as error:
        return str(error)
    return ""


@functools.cache
def miss(**shape: Any) -> str:
    """Return the reason why no decode kernel serves the layers that ``shape`` describes, or an empty string if a kernel
    does.

    shape: the arguments of the package's ``supports`` that describe the layers. The numbers of heads count the heads of
    one tensor-parallel rank.

    If a kernel serves the layers, this function loads the compiled library of the CUDA kernels. The library is the file
    that the environment variable PAV2_LIBRARY names, or else the file that was installed with the kernels.
    """
    if not shape["block_size"]:
        return "the query or the key cache has another number of dimensions than vLLM's"
    for library in sorted(Path(__file__).parent.glob("prebuilt/*.so")):
        os.environ.setdefault("PAV2_LIBRARY", str(library))
    try:
        check_model(tp_size=1, **shape)
    except (ValueError, TypeError, NoKernelError) as error:
        return str(error)
    return ""


@functools.cache
def lacks(operator: str, **shape: Any) -> str:
    """Return the reason why a generated operator does not serve the layers that ``shape`` describes, or an empty string
    if the operator does.

    operator: a key of ``OPERATORS``, such as ``paged_attention_v2``.
    shape: the arguments of the package's ``supports`` that describe the layers.
    """
    word = OPERATORS[operator]
    if word == "decode":
        return miss(**shape)
    if not hasattr(importlib.import_module(__package__), operator):
        return f"the package has no {operator}: {how_to_build(word)}"
    if supports(operator=word, **shape):
        return ""
    return f"no {word} kernel for {' '.join(f'{name}={value}' for name, value in shape.items())}: {how_to_build(word)}"


def how_to_build(word: str) -> str:
    """Return the end of a message that says how to add kernels of an operator to a package.

    word: the operator's name in a spec, such as ``extend``.
    """
    return f"add {word} to the operators of the spec, then build and install it again"


def log_once(level: int, message: str, about: tuple[Any, ...] = ()) -> None:
    """Log ``message``, unless this process has logged a message with the same key before.

    level: the level of the message, such as ``logging.WARNING``.
    about: the key of the message. If ``about`` is empty, the text of the message is the key.
    """
    if (about or message) not in _logged:
        _logged.add(about or message)
        logger.log(level, "pav2: %s", message)


_logged: set[tuple[Any, ...] | str] = set()
