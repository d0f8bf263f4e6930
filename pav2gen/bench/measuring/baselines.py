"""Baselines that kernels are compared with: a simple PyTorch algorithm, torch's attention, and vLLM's operator."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pav2gen.runtime.call import Call
from pav2gen.runtime.choice.key import Key

#: The partition size, in tokens, of vLLM's paged_attention_v2. Callers of that operator allocate its scratch tensors
#: for this size.
PARTITION = 512

#: The largest allowed error of a baseline, by the dtype of the query. The error is the norm of the difference from the
#: float64 result, divided by the norm of that result. Kernels have a tolerance of their own, because baselines may
#: round more often.
TOLERANCE = {"float16": 1e-2, "bfloat16": 3e-2, "float32": 1e-4}


#: ``sdpa`` computes a batch in one call of torch's attention only if the keys of the whole batch have fewer elements
#: than this. Larger copies of K and V would not stay in the processor's caches.
TOGETHER = 2 << 20


class NotApplicable(Exception):
    """Raised if a baseline cannot solve a problem. The message gives the reason."""


def baseline(name: str, key: Key) -> Callable[[Call], None]:
    """Return a function that solves problems with the configuration ``key`` by the baseline called ``name``.

    Raises NotApplicable, with the reason, if the baseline does not support the configuration or is not installed.
    """
    added = key.softcap or key.sliding_window or key.sinks or key.modification
    if name == "vllm" and added:
        raise NotApplicable("vLLM's operator has no softcap, window, sinks or modification")
    if name == "vllm":
        return functools.partial(vllm_operator(), kv_cache_dtype=key.kv_cache_dtype)
    if key.kv_cache_dtype != "auto" or not key.is_plain:
        raise NotApplicable("this baseline computes plain attention: no cache of 8 bits, and no features")
    if name == "flex":
        _compiled_flex_attention()
    return BASELINES[name]


def vllm_operator() -> Callable[..., None]:
    """Return a function that calls vLLM's own attention operator.

    vLLM's operator is paged_attention_v2. A fork of vLLM without it, such as the fork for the BI-V100 GPU, has
    paged_attention_v1. Raises NotApplicable if vLLM cannot be imported, or if it has neither operator.
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
    """Call vLLM's paged_attention_v2.

    Since vLLM 0.7, this operator takes the scales of K and V as tensors. Older versions take them as numbers.
    """
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
    """Return ``value`` as a zero-dimensional tensor on ``device``.

    Calls with equal arguments return the same tensor object.
    """
    return torch.tensor(value, device=device)


def _vllm_fork_v1(operator: Any, call: Call, kv_cache_dtype: str) -> None:
    """Call paged_attention_v1 of the vLLM fork for the BI-V100 GPU.

    The fork's operator also takes a tensor with the index of the KV head of each query head. The operator has no
    parameters for the scales of an fp8 cache or for block-sparse patterns. Raises NotApplicable if the call needs such
    scales or such a pattern.
    """
    if kv_cache_dtype != "auto" or call.sparse is not None:
        raise NotApplicable("V1 of this fork drops fp8 scales and block-sparse patterns")
    kv_heads, heads = call.key_cache.shape[1], call.query.shape[1]
    mapping = torch.arange(kv_heads, dtype=torch.int32, device=call.query.device).repeat_interleave(heads // kv_heads)
    operator(
        *(call.out, call.query, call.key_cache, call.value_cache, mapping, call.scale, call.block_tables),
        *(call.seq_lens, call.key_cache.shape[3], call.max_seq_len, call.alibi_slopes),
    )


def seed_like(call: Call) -> None:
    """Compute split-KV decode as the first version of pav2gen did: a loop over sequences, in float32.

    The function initializes the scratch tensors first. For each sequence, it gathers K and V from all pages, converts
    them to float32, and copies them so that each KV head is contiguous. After that, the baseline pads the scores and V
    to whole partitions. The matmuls broadcast K and V over the query heads of each KV head. For this, eager PyTorch
    copies K and V for each query head.
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
    """Gather K and V from their pages into dense tensors, and call torch's ``scaled_dot_product_attention``.

    The query heads that share a KV head are passed as query tokens of one head, so that K and V are not repeated. If
    the sequences of a batch have the same length, and their keys have few elements in total (see ``TOGETHER``), they
    are computed in one call, because that is faster. Otherwise, each sequence is computed in a call of its own.
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
    """Compute attention with torch's compiled FlexAttention, one sequence after the other.

    The first call with each dtype takes tens of seconds, because torch compiles FlexAttention during this call.
    """
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
    """Return torch's FlexAttention as a function that torch compiles once for sequences of all lengths.

    Raises NotApplicable if torch has no FlexAttention.
    """
    try:
        module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    except ImportError:
        raise NotApplicable(f"torch {torch.__version__} has no FlexAttention") from None
    return torch.compile(module.flex_attention, dynamic=True)


def dense_batch(call: Call, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather K and V of all sequences of a batch from their pages: two tensors [seqs, kv heads, tokens, head size].

    length: the number of tokens in each of the sequences.
    """
    seqs, size, page = call.query.shape[0], call.query.shape[2], call.key_cache.shape[3]
    blocks = call.block_tables[:, : -(-length // page)]
    keys = call.key_cache[blocks].permute(0, 2, 1, 4, 3, 5).reshape(seqs, call.key_cache.shape[1], -1, size)
    values = call.value_cache[blocks].permute(0, 2, 1, 4, 3).reshape(seqs, call.key_cache.shape[1], -1, size)
    return keys[:, :, :length], values[:, :, :length]


def dense(call: Call, s: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather K and V of one sequence from its pages: two tensors [tokens, kv heads, head size].

    s: the index of the sequence in the batch.
    length: the number of tokens in the sequence.
    """
    _, kv_heads, _, page, _ = call.key_cache.shape
    blocks = call.block_tables[s, : -(-length // page)]
    size = call.query.shape[2]
    keys = call.key_cache[blocks].permute(0, 3, 1, 2, 4).reshape(-1, kv_heads, size)
    values = call.value_cache[blocks].permute(0, 3, 1, 2).reshape(-1, kv_heads, size)
    return keys[:length], values[:length]


BASELINES: Mapping[str, Callable[[Call], None]] = {"sdpa": sdpa, "flex": flex, "seed": seed_like}
