"""The baselines of a measurement: the project's first algorithm, torch's own attention, and vLLM's operator."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pav2gen.runtime.call import Call
from pav2gen.runtime.select import Key

#: The partition size of vLLM's paged_attention_v2, for which its callers allocate scratch.
PARTITION = 512

#: The allowed error of a baseline, relative to the result's norm. Baselines may round more often than our kernels.
TOLERANCE = {"float16": 1e-2, "bfloat16": 3e-2, "float32": 1e-4}


#: A batch is gathered as a whole if K has at most this many elements. Larger copies would not stay in the caches.
TOGETHER = 2 << 20


class NotApplicable(Exception):
    """A baseline cannot solve a problem. The message says why."""


def baseline(name: str, key: Key) -> Callable[[Call], None]:
    """The baseline called ``name`` for problems of ``key``. Raises NotApplicable with the reason."""
    added = key.softcap or key.sliding_window or key.sinks or key.modification
    if name == "vllm" and added:
        raise NotApplicable("vLLM's operator has no softcap, window, sinks or modification")
    if name == "vllm":
        return functools.partial(vllm_operator(), kv_cache_dtype=key.kv_cache_dtype)
    if key.kv_cache_dtype != "auto" or not key.is_plain:
        raise NotApplicable("plain attention: no fp8 cache, and no features")
    if name == "flex":
        _compiled_flex_attention()
    return BASELINES[name]


def vllm_operator() -> Callable[..., None]:
    """vLLM's own operator: its compiled V2, or V1 if V2 is missing, as in the BI-V100 fork.

    Raises NotApplicable if vLLM is missing or has neither operator.
    """
    try:
        custom_ops: Any = importlib.import_module("vllm._custom_ops")
    except ImportError:
        raise NotApplicable("vLLM is not installed") from None
    except Exception as error:  # a vLLM that is not for this machine fails in many ways
        raise NotApplicable(f"vLLM does not load: {error}") from None
    compiled = getattr(getattr(torch.ops, "_C", None), "paged_attention_v2", None)
    if compiled is not None:
        return functools.partial(_vllm_v2, compiled.default)
    if hasattr(custom_ops, "paged_attention_v1"):
        return functools.partial(_vllm_fork_v1, custom_ops.paged_attention_v1)
    raise NotApplicable("this vLLM has no paged_attention_v2 of its own")


def _vllm_v2(operator: Any, call: Call, kv_cache_dtype: str) -> None:
    """Call vLLM's V2 operator. From vLLM 0.7 on, it takes the scales as tensors."""
    assert call.scratch is not None
    on_device = any(a.name == "k_scale" and "Tensor" in str(a.type) for a in operator._schema.arguments)
    scales = [_scalar(float(s), call.query.device) if on_device else s for s in (call.k_scale, call.v_scale)]
    sparse = call.sparse
    operator(
        *(call.out, call.scratch.exp_sums, call.scratch.max_logits, call.scratch.tmp_out, call.query),
        *(call.key_cache, call.value_cache, call.key_cache.shape[1], call.scale, call.block_tables, call.seq_lens),
        *(call.key_cache.shape[3], call.max_seq_len, call.alibi_slopes, kv_cache_dtype, *scales),
        *((sparse.tp_rank, sparse.local_blocks, sparse.vert_stride) if sparse else (0, 0, 0)),
        *((sparse.block_size, sparse.head_sliding_step) if sparse else (64, 0)),
    )


@functools.cache
def _scalar(value: float, device: torch.device) -> torch.Tensor:
    """A number as a tensor on the device, as models keep their scales."""
    return torch.tensor(value, device=device)


def _vllm_fork_v1(operator: Any, call: Call, kv_cache_dtype: str) -> None:
    """Call V1 of the BI-V100 fork. It takes the KV head of each query head, but no scales and no sparse patterns."""
    if kv_cache_dtype != "auto" or call.sparse is not None:
        raise NotApplicable("V1 of this fork drops fp8 scales and block-sparse patterns")
    kv_heads, heads = call.key_cache.shape[1], call.query.shape[1]
    mapping = torch.arange(kv_heads, dtype=torch.int32, device=call.query.device).repeat_interleave(heads // kv_heads)
    operator(
        *(call.out, call.query, call.key_cache, call.value_cache, mapping, call.scale, call.block_tables),
        *(call.seq_lens, call.key_cache.shape[3], call.max_seq_len, call.alibi_slopes),
    )


def seed_like(call: Call) -> None:
    """The project's first algorithm of split-KV decode: a loop over sequences, with the whole context in float32.

    The scratch is filled first. For each sequence, all pages are gathered, converted to float32 and put into the order
    of heads. Values are padded to whole partitions. The matmuls broadcast over the query heads of a group, for which
    eager PyTorch copies K and V for each head.
    """
    kv_heads, heads, size = call.key_cache.shape[1], call.query.shape[1], call.query.shape[2]
    group = heads // kv_heads
    if call.scratch is not None:
        call.scratch.max_logits.fill_(float("-inf"))
        call.scratch.exp_sums.zero_()
        call.scratch.tmp_out.zero_()
    for s, length in enumerate(call.seq_lens.tolist()):
        if not length:
            call.out[s].zero_()
            continue
        keys, values = dense(call, s, length)  # [tokens, kv heads, size]
        by_head = keys.permute(1, 2, 0).float().contiguous(), values.permute(1, 0, 2).float().contiguous()
        query = call.query[s].float().view(kv_heads, group, 1, size)
        scores = torch.matmul(query, by_head[0].unsqueeze(1)).view(heads, length) * call.scale
        partitions = -(-length // PARTITION)
        padded = torch.full((heads, partitions * PARTITION), float("-inf"), device=scores.device)
        padded[:, :length] = scores
        parts = padded.view(heads, partitions, PARTITION)
        m = parts.amax(-1)
        weights = torch.exp(parts - m.unsqueeze(-1))
        z = weights.sum(-1)
        tail = torch.zeros(kv_heads, partitions * PARTITION, size, device=scores.device)
        tail[:, :length] = by_head[1]
        sums = torch.matmul(
            weights.view(kv_heads, group, partitions, 1, PARTITION),
            tail.view(kv_heads, 1, partitions, PARTITION, size),
        ).view(heads, partitions, size)
        rescale = torch.exp(m - m.amax(-1, keepdim=True))
        out = torch.bmm(rescale.unsqueeze(1), sums).squeeze(1) / (rescale * z).sum(-1, keepdim=True)
        call.out[s] = out.to(call.out.dtype)


def sdpa(call: Call) -> None:
    """Gather dense K and V, put the heads of a group into the axis of query tokens, and call torch's own attention.

    Short sequences of equal length are computed together, others one by one. Each way is the faster one in its case.
    """
    kv_heads, heads, size = call.key_cache.shape[1], call.query.shape[1], call.query.shape[2]
    lengths = call.seq_lens.tolist()
    if len(set(lengths)) == 1 and lengths[0] and sum(lengths) * kv_heads * size < TOGETHER:
        keys, values = dense_batch(call, lengths[0])
        query = call.query.view(len(lengths), kv_heads, heads // kv_heads, size)
        out = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=call.scale)
        call.out.copy_(out.view(len(lengths), heads, size))
        return
    for s, length in enumerate(lengths):
        if not length:
            call.out[s].zero_()
            continue
        keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in dense(call, s, length))
        query = call.query[s].view(1, kv_heads, heads // kv_heads, size)
        out = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=call.scale)
        call.out[s] = out.view(heads, size)


def flex(call: Call) -> None:
    """As ``sdpa``, but with torch's compiled FlexAttention. The first call of a dtype compiles for tens of seconds."""
    kv_heads, heads, size = call.key_cache.shape[1], call.query.shape[1], call.query.shape[2]
    attention = _compiled_flex_attention()
    for s, length in enumerate(call.seq_lens.tolist()):
        if not length:
            call.out[s].zero_()
            continue
        keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in dense(call, s, length))
        query = call.query[s].view(1, kv_heads, heads // kv_heads, size)
        call.out[s] = attention(query, keys, values, scale=call.scale).view(heads, size)


@functools.cache
def _compiled_flex_attention() -> Callable[..., Any]:
    """FlexAttention, compiled for any length. Raises NotApplicable if torch lacks it."""
    try:
        module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    except ImportError:
        raise NotApplicable(f"torch {torch.__version__} has no FlexAttention") from None
    return torch.compile(module.flex_attention, dynamic=True)


def dense_batch(call: Call, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of all sequences, each of ``length`` tokens: [seqs, kv heads, tokens, head size] each."""
    seqs, size, page = call.query.shape[0], call.query.shape[2], call.key_cache.shape[3]
    blocks = call.block_tables[:, : -(-length // page)]
    keys = call.key_cache[blocks].permute(0, 2, 1, 4, 3, 5).reshape(seqs, call.key_cache.shape[1], -1, size)
    values = call.value_cache[blocks].permute(0, 2, 1, 4, 3).reshape(seqs, call.key_cache.shape[1], -1, size)
    return keys[:, :, :length], values[:, :, :length]


def dense(call: Call, s: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of one sequence, gathered from its pages: [tokens, kv heads, head size] each."""
    _, kv_heads, _, page, _ = call.key_cache.shape
    blocks = call.block_tables[s, : -(-length // page)]
    size = call.query.shape[2]
    keys = call.key_cache[blocks].permute(0, 3, 1, 2, 4).reshape(-1, kv_heads, size)
    values = call.value_cache[blocks].permute(0, 3, 1, 2).reshape(-1, kv_heads, size)
    return keys[:length], values[:length]


BASELINES: Mapping[str, Callable[[Call], None]] = {"sdpa": sdpa, "flex": flex, "seed": seed_like}
