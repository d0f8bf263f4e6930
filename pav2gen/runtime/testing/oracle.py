"""Computes attention in float64 with plain loops over sequences and KV heads, and computes the error that tests allow.

This module computes on the CPU, because some GPUs, such as the BI-V100, compute float64 wrongly.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, NamedTuple

import torch

from ..call import BlockSparse, Call
from ..choice.dispatch_row import Modification
from .expression import evaluator

#: A row of out, with the float64 result t, must satisfy ||out - t|| <= ROUNDINGS * ||round(t) - t|| + NOISE * ||t||.
#: The first term allows one rounding to the output dtype. The second term allows the error of float32 arithmetic.
ROUNDINGS, NOISE = 1.25, 2e-6


class Partition(NamedTuple):
    """The softmax state of one partition (consecutive tokens of a sequence), for one query head of one sequence.

    m: the largest score.
    z: the sum of exp(score - m).
    o: the attention output for the tokens of the partition.
    """

    m: float
    z: float
    o: torch.Tensor  # [head size] float64


class Reference(NamedTuple):
    """The float64 results of one call of the decode operator.

    ``partitions[s][h]`` is a list of softmax states for sequence ``s`` and query head ``h``: one for each partition
    that has tokens.
    """

    out: torch.Tensor  # [seqs, heads, head size] float64
    lse: torch.Tensor  # [seqs, heads] float64
    partitions: list[list[list[Partition]]]


def fp8_value(code: int, kv_cache_dtype: str) -> float:
    """Return the value of an fp8 number, computed from its sign, exponent and fraction bits.

    code: the 8 bits of the fp8 number, as an integer from 0 to 255.
    kv_cache_dtype: the fp8 format: ``fp8_e4m3`` or ``fp8_e5m2``.
    """
    exponent_bits, fraction_bits, bias = (4, 3, 7) if kv_cache_dtype == "fp8_e4m3" else (5, 2, 15)
    sign = -1.0 if code >> 7 else 1.0
    exponent = code >> fraction_bits & (1 << exponent_bits) - 1
    fraction = code & (1 << fraction_bits) - 1
    if kv_cache_dtype == "fp8_e4m3" and code & 0x7F == 0x7F:
        return math.nan
    if kv_cache_dtype == "fp8_e5m2" and exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias - fraction_bits)
    return sign * math.ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits)


def nearest_codes(values: torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    """Round each of the float64 ``values`` to the nearest finite fp8 or int8 number.

    A value halfway between two numbers is rounded to the number whose last bit is 0. For fp8, the result is a uint8
    tensor with the bits of the fp8 numbers, and NaN stays NaN. For an int8 cache, the result is an int8 tensor, and NaN
    becomes 0.
    """
    if kv_cache_dtype == "int8":
        magnitudes = torch.arange(128, dtype=torch.float64)
    else:
        finite = range(0x7F if kv_cache_dtype == "fp8_e4m3" else 0x7C)  # not negative, in rising order
        magnitudes = torch.tensor([fp8_value(code, kv_cache_dtype) for code in finite], dtype=torch.float64)
    middles = (magnitudes[1:] + magnitudes[:-1]) / 2
    size = values.abs()
    nearest = torch.bucketize(size, middles)  # a value in the middle belongs to the lower code
    tied = torch.cat((middles, middles.new_tensor([math.inf])))[nearest] == size
    nearest += (tied & (size < math.inf)) * (nearest % 2)
    negative = torch.signbit(values)
    if kv_cache_dtype == "int8":
        return torch.where(negative, -nearest, nearest).masked_fill(values.isnan(), 0).to(torch.int8)
    return (nearest + negative * 128).masked_fill(values.isnan(), 0x7F).to(torch.uint8)


def decode(cache: torch.Tensor, kv_cache_dtype: str, scale: float | torch.Tensor) -> torch.Tensor:
    """Convert elements of a KV cache to float64. The elements of an fp8 or int8 cache are multiplied by ``scale``.

    scale: a float, or a tensor with one number per KV head, in a shape that broadcasts to ``cache``.
    """
    if kv_cache_dtype == "auto":
        return cache.double()
    values = cache.double() if kv_cache_dtype == "int8" else fp8_values(kv_cache_dtype)[cache.long()]
    return values * scale


@functools.cache
def fp8_values(kv_cache_dtype: str) -> torch.Tensor:
    """Return the values of all 256 fp8 numbers of one format: [256] float64."""
    return torch.tensor([fp8_value(code, kv_cache_dtype) for code in range(256)], dtype=torch.float64)


def reference(
    call: Call, kv_cache_dtype: str, partition_size: int, modification: Modification | None = None
) -> Reference:
    """Compute the float64 results of one call of the decode operator. All tensors of ``call`` must be on the CPU.

    A sequence length is clamped to ``max_seq_len``, and to the number of tokens that the block table has entries for.
    The operator clamps sequence lengths in the same way.

    modification: the expressions that change or mask the scores, if ``call.modification`` names any.
    """
    seqs, num_heads, head_size = call.query.shape
    out = torch.zeros(seqs, num_heads, head_size, dtype=torch.float64)
    lse = torch.full((seqs, num_heads), -math.inf, dtype=torch.float64)
    partitions: list[list[list[Partition]]] = []
    for s in range(seqs):
        keys, values = gather(call, s, kv_cache_dtype)  # [kv heads, tokens, head size] float64
        partitions.append([])
        for kv_head, group in enumerate(groups(call)):
            scores = score(call, s, group, keys[kv_head], modification)
            heads = slice(group.start, group.stop)
            out[s, heads], lse[s, heads] = attention(call, group, scores, values[kv_head])
            parts = [part(scores[:, i : i + partition_size], values[kv_head, i : i + partition_size])
                     for i in range(0, scores.shape[1], partition_size)]  # fmt: skip
            partitions[s] += [[of_heads[place] for of_heads in parts] for place in range(len(group))]
    return Reference(out, lse, partitions)


def groups(call: Call) -> list[range]:
    """Return the indices of the query heads that share each KV head: one range per KV head."""
    heads, kv_heads = call.query.shape[1], call.key_cache.shape[1]
    return [range(first, first + heads // kv_heads) for first in range(0, heads, heads // kv_heads)]


def attention(
    call: Call, group: range, scores: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute out, [heads, head size], and lse, [heads], for query heads that share a KV head.

    The output of a head that attends to no token is 0.

    group: the indices of the query heads.
    scores: [heads, tokens] float64, with -inf for masked tokens.
    values: [tokens, head size] float64.
    """
    if call.sinks is None:
        sinks = torch.full((len(group), 1), -math.inf, dtype=torch.float64)
    else:
        sinks = call.sinks[group.start : group.stop].double().unsqueeze(1)
    logits = torch.cat([scores, sinks], 1)
    attended = (scores > -math.inf).any(1, keepdim=True)
    out = torch.softmax(logits, 1)[:, :-1] @ values
    return torch.where(attended, out, torch.zeros_like(out)), torch.logsumexp(logits, 1)


def gather(call: Call, s: int, kv_cache_dtype: str, start: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and the values of sequence ``s`` in the order of its tokens: [kv heads, tokens, head size]
    float64 each.

    The keys and values are 0 in all pages that end at or before position ``start``. By default, ``start`` is the first
    position that the last token attends to.
    """
    _, kv_heads, _, page, _ = call.key_cache.shape
    head_size = call.query.shape[2]
    limit = min(call.max_seq_len, call.block_tables.shape[1] * page)
    length = max(0, min(int(call.seq_lens[s]), limit))
    start = window_start(call, length) if start is None else start
    before, count = start // page, -(-length // page)
    pages = call.block_tables[s, before:count].long()
    k = call.key_cache[pages].permute(1, 0, 3, 2, 4)  # [kv heads, count, page, head size / x, x]
    v = call.value_cache[pages].permute(1, 0, 3, 2)  # [kv heads, count, page, head size]
    k, v = (
        decode(stored.reshape(kv_heads, -1, head_size), kv_cache_dtype, each_head(scale))
        for stored, scale in ((k, call.k_scale), (v, call.v_scale))
    )
    skipped = torch.zeros(kv_heads, before * page, head_size, dtype=torch.float64)
    return torch.cat([skipped, k], 1)[:, :length], torch.cat([skipped, v], 1)[:, :length]


def each_head(scale: float | torch.Tensor) -> torch.Tensor:
    """Return ``scale``, the scale of the keys or values, as float64 in a shape that broadcasts to [kv heads, tokens,
    head size].
    """
    return torch.as_tensor(scale, dtype=torch.float64).view(-1, 1, 1)


def window_start(call: Call, tokens: int) -> int:
    """Return the first position that the last of ``tokens`` tokens attends to.

    Without a sliding window, the result is 0.
    """
    return 0 if call.sliding_window is None else max(0, tokens - call.sliding_window)


def score(
    call: Call,
    s: int,
    group: range,
    keys: torch.Tensor,
    modification: Modification | None = None,
    length: int | None = None,
) -> torch.Tensor:
    """Return the scores of the query heads ``group`` in sequence ``s``: [heads, tokens] float64, with -inf for masked
    tokens.

    The query belongs to the last token of ``keys``. The operations are applied in the order of vLLM and ONNX: scale,
    softcap, ALiBi, the modification that the spec file defines, masks.

    group: the indices of query heads that share a KV head.
    keys: the keys of this KV head, [tokens, head size] float64.
    length: the length of the sequence, if the sequence continues after the last token of ``keys``.
    """
    tokens = keys.shape[0]
    scores = call.query[s, group.start : group.stop].double() @ keys.T * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes[group.start : group.stop].double().unsqueeze(1)
        scores += slopes * torch.arange(1 - tokens, 1, dtype=torch.float64)
    if modification is not None:
        rows = [modified(call, h, scores[place], modification, length=length, position=tokens - 1)
                for place, h in enumerate(group)]  # fmt: skip
        scores = torch.stack(rows)
    scores[:, : window_start(call, tokens)] = -math.inf
    if call.sparse is not None:
        kv_head = group.start // len(group)
        for place, h in enumerate(group):
            attended = [attends(call.sparse, call, h, kv_head, position, tokens) for position in range(tokens)]
            scores[place, ~torch.tensor(attended, dtype=torch.bool)] = -math.inf
    return scores


def modified(
    call: Call,
    h: int,
    scores: torch.Tensor,
    modification: Modification,
    start: int = 0,
    length: int | None = None,
    position: int | None = None,
) -> torch.Tensor:
    """Apply a modification to the scores of query head ``h``, token by token.

    If the modification has a mask that is false for a token, the token's score becomes -inf.

    scores: [tokens] float64, where the first score belongs to the token at position ``start``.
    length: the length of the sequence; by default, the number of ``scores``.
    position: the position of the query; by default, the last position of the sequence.
    """
    length = len(scores) if length is None else length
    position = length - 1 if position is None else position
    kv_head = h // (call.query.shape[1] // call.key_cache.shape[1])
    names: dict[str, Any] = {"q": position, "h": h, "kvh": kv_head, "len": length}
    names |= {name: tensor.tolist() for (name, _), tensor in zip(modification.tensors, call.tensors)}
    change = evaluator(modification.score) if modification.score else operator.itemgetter("s")
    attended = evaluator(modification.mask) if modification.mask else None
    result = []
    for k, s in enumerate(scores.tolist(), start):
        names.update(s=s, k=k)
        result.append(float(change(names)) if attended is None or attended(names) else -math.inf)
    return torch.tensor(result, dtype=torch.float64)


def attends(sparse: BlockSparse, call: Call, h: int, kv_head: int, position: int, tokens: int) -> bool:
    """Return whether query head ``h`` attends to the token at ``position`` under vLLM 0.6.3's block-sparse pattern.

    tokens: the length of the sequence.
    """
    heads, kv_heads = call.query.shape[1], call.key_cache.shape[1]
    if sparse.head_sliding_step >= 0:
        offset = (sparse.tp_rank * heads + h) * sparse.head_sliding_step + 1
    else:
        offset = (sparse.tp_rank * kv_heads + kv_head) * -sparse.head_sliding_step + 1
    block, last = position // sparse.block_size, (tokens - 1) // sparse.block_size
    return (block + offset) % sparse.vert_stride == 0 or block > last - sparse.local_blocks


def part(scores: torch.Tensor, values: torch.Tensor) -> list[Partition]:
    """Compute the softmax states of one partition, one state for each query head.

    scores: [heads, tokens] float64.
    values: [tokens, head size] float64, for the KV head that the query heads share.
    """
    m = scores.amax(1)
    weights = torch.where(m.unsqueeze(1) > -math.inf, torch.exp(scores - m.unsqueeze(1)), torch.zeros_like(scores))
    z = weights.sum(1)
    o = weights @ values / torch.where(z > 0, z, torch.ones_like(z)).unsqueeze(1)
    return [Partition(*state) for state in zip(m.tolist(), z.tolist(), o)]


def excess(out: torch.Tensor, truth: torch.Tensor, noise: float | torch.Tensor = NOISE) -> float:
    """Return the largest error of a row of ``out``, divided by the largest allowed error.

    A result of at most 1 means that ``out`` is correct. ``excesses`` describes the parameters.
    """
    over = excesses(out, truth, noise)
    return float(over.max()) if over.numel() else 0.0


def excesses(out: torch.Tensor, truth: torch.Tensor, noise: float | torch.Tensor = NOISE) -> torch.Tensor:
    """Return the error of each row (last dimension) of ``out``, divided by the largest allowed error, as float64.

    Where a row of ``truth`` is zero, the row of ``out`` must be zero. A NaN counts as an infinite error.

    out: the output of a kernel, [..., head size].
    truth: the float64 reference, [..., head size].
    noise: the allowed relative error of float32 arithmetic: one number, or a tensor [...] with a number for each row.
    """
    error = (out.double() - truth).norm(dim=-1)
    allowed = ROUNDINGS * (truth.to(out.dtype).double() - truth).norm(dim=-1) + noise * truth.norm(dim=-1)
    ratio = torch.where(error == 0, torch.zeros_like(error), error / allowed)
    return torch.nan_to_num(ratio, nan=math.inf, posinf=math.inf)
