"""Hooks that let models with a softcap run in a backend of vLLM that cannot compute a softcap, such as XFormers.

A softcap is a limit on scores. Without these hooks, such a backend raises an error for a layer with a softcap, or logs
a warning and ignores the softcap. With the hooks, generated decode kernels compute the layer's decodes, and generated
extend kernels compute the layer's prompts.

vLLM writes keys and values of a prompt into the cache before it computes the prompt's attention. The extend kernels
read these keys and values from the cache.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from contextvars import ContextVar
from typing import Any

import torch

from . import kernels
from .layer_features import Features
from .prefix_hooks import extend
from .serving import disabled, lacks, log_once

#: The attribute of a backend object in which ``take_softcap`` keeps the softcap.
TAKEN = "pav2_softcap"

#: The method by which the backend XFormers computes the attention of prompts.
PROMPTS = "_run_memory_efficient_xformers_forward"

#: The arguments, by their names, of the call of a backend's ``forward`` that is running now.
_arguments: ContextVar[dict[str, Any]] = ContextVar("pav2_arguments")


def take_softcap(impl: Any, softcap: float | None) -> float | None:
    """Keep the softcap of a layer in ``impl``, and return None, so that the backend's constructor raises no error.

    If the package has no extend kernels, log a warning and return ``softcap`` itself, so that the constructor raises
    vLLM's own error.

    impl: the layer's backend object (its attribute ``impl``).
    softcap: the softcap that vLLM passes to the constructor. None means that the model has no softcap.
    """
    if softcap is None or disabled():
        return softcap
    if not any(row.operator == "extend" for row in kernels.rows):
        log_once(
            logging.WARNING,
            f"softcap={softcap}: the package has decode kernels with it, but prompts need extend kernels, and the "
            "package has none. So vLLM refuses the model",
        )
        return softcap
    setattr(impl, TAKEN, softcap)
    return None


def require_softcap(impl: Any, shape: dict[str, Any], features: Features) -> Features:
    """Make the generated kernels serve decodes and prompts of a layer with a softcap.

    Returns ``features``. Its field ``required`` is True if the generated kernels serve the layer.

    impl: the layer's backend object (its attribute ``impl``).
    shape: the arguments of the package's ``supports`` that describe the layer.
    features: the softcap, the window and similar features of the layer.

    If the kernels cannot serve the layer, this function logs a warning for a backend that ignores softcaps. For a
    backend that itself raises an error for softcaps, this function raises ValueError.
    """
    reason = _obstacle(impl, shape)
    if not reason:
        _serve_prompts(impl, features)
        return features._replace(required=True)
    if hasattr(impl, TAKEN):
        raise ValueError(f"vLLM's {type(impl).__name__} has no softcap, and the kernels cannot serve it: {reason}")
    if hasattr(impl, PROMPTS):
        log_once(logging.WARNING, f"{reason}; vLLM computes prompts of these layers without their softcap")
    return features


def _obstacle(impl: Any, shape: dict[str, Any]) -> str:
    """Return the reason why the generated kernels cannot serve decodes and prompts of a layer, or an empty string if
    the kernels can.

    impl: the layer's backend object (its attribute ``impl``).
    shape: the arguments of the package's ``supports`` that describe the layer.
    """
    if not hasattr(impl, PROMPTS):
        return "this backend computes prompts in another way"
    if "sliding_window" in shape:
        return "with a sliding window vLLM does not write all tokens of a prompt into the cache"
    return lacks("paged_attention_v2", **shape) or lacks("paged_attention_extend", **shape)


def _serve_prompts(impl: Any, features: Features) -> None:
    """Replace methods of ``impl``, a layer's backend object, so that the generated extend kernels compute prompts."""
    forward, own = impl.forward, getattr(impl, PROMPTS)
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def noting(*args: Any, **kwargs: Any) -> Any:
        token = _arguments.set(signature.bind(*args, **kwargs).arguments)
        try:
            return forward(*args, **kwargs)
        finally:
            _arguments.reset(token)

    @functools.wraps(own)
    def prompts(query: torch.Tensor, key: Any, value: Any, attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        given = _arguments.get()
        if given["kv_cache"].numel() == 0:  # vLLM profiles memory before the cache exists, and drops the result
            return own(query, key, value, attn_metadata, *args, **kwargs)
        return prompt_through_cache(impl, query, attn_metadata, given, features)

    impl.forward = noting
    setattr(impl, PROMPTS, prompts)


def prompt_through_cache(
    impl: Any, query: torch.Tensor, metadata: Any, given: dict[str, Any], features: Features
) -> torch.Tensor:
    """Return the attention output of whole prompts, in the shape of ``query``. Keys and values are read from the cache.

    impl: the layer's backend object (its attribute ``impl``).
    query: [tokens of all prompts, query heads, head size]. The prompts follow one another.
    metadata: vLLM's attention metadata of these prompts.
    given: the arguments of the running call of the backend's ``forward``, by their names.
    features: the softcap, the window and similar features of the layer.
    """
    attention = sys.modules[type(impl).__module__].PagedAttention
    key_cache, value_cache = attention.split_kv_cache(given["kv_cache"], impl.num_kv_heads, impl.head_size)
    tables = prompt_tables(metadata.slot_mapping, metadata.query_start_loc, metadata.max_query_len, key_cache.shape[3])
    scales = {name: given.get(name, getattr(given.get("layer"), f"_{name}", 1.0)) for name in ("k_scale", "v_scale")}
    return extend(
        query, key_cache, value_cache, impl.kv_cache_dtype, features._replace(scale=impl.scale),
        block_tables=tables, query_start_loc=metadata.query_start_loc, seq_lens=metadata.seq_lens_tensor,
        max_query_len=metadata.max_query_len, alibi_slopes=impl.alibi_slopes, **scales,
    )  # fmt: skip


def prompt_tables(slots: torch.Tensor, starts: torch.Tensor, longest: int, page: int) -> torch.Tensor:
    """Return the block tables of prompts, [prompts, pages of the longest prompt] int32.

    vLLM itself makes no block tables for prompts.

    slots: [tokens of all prompts], the slot of each token in the cache, which is block * page + offset in the block.
    starts: [prompts + 1], the index in ``slots`` of the first token of each prompt, then the number of tokens.
    longest: the number of tokens of the longest prompt.
    page: the number of tokens in a page.

    In the row of a prompt, the entries after the prompt's last page repeat the last page. No tensor is copied from the
    GPU to the CPU.
    """
    first = torch.arange(0, longest, page, device=slots.device)  # the first token of each page, within its prompt
    tokens = torch.minimum(starts[:-1, None] + first, starts[1:, None] - 1)
    return (slots[tokens] // page).to(torch.int32)
