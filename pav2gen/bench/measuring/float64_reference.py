"""Computes the float64 result of a long problem in little memory: one stretch of consecutive tokens after the other.

``runtime.testing.oracle.reference`` converts the whole context of a sequence to float64. For 100,000 tokens, that takes
gigabytes. Therefore, this module computes a softmax state (maximum, sum and output) for each stretch, and merges the
states.
"""

from __future__ import annotations

import math

import torch

from pav2gen.runtime.call import Call
from pav2gen.runtime.choice.dispatch_row import Modification
from pav2gen.runtime.testing.oracle import attends, decode, modified, window_start

#: The number of tokens in a stretch. It is rounded down to whole pages, but a stretch has at least one page.
STRETCH = 8192

#: At most this many sequences of a batch are checked. For an extend call, at most this many new tokens of each of these
#: sequences are checked.
MOST_SEQUENCES = 4


def sequences(num_seqs: int) -> list[int]:
    """Return which sequences of a batch are checked, as indices: the first, the last, and some between.

    num_seqs: the number of sequences in the batch.
    """
    count = min(num_seqs, MOST_SEQUENCES)
    return sorted({round(i * (num_seqs - 1) / max(1, count - 1)) for i in range(count)})


def truth(
    call: Call,
    kv_cache_dtype: str,
    rows: list[int],
    modification: Modification | None = None,
    whole: int | None = None,
) -> torch.Tensor:
    """Return the float64 output of ``call`` for the sequences ``rows``: a tensor [sequences, query heads, head size].

    call: a call with all tensors on the CPU.
    rows: the sequences to compute, as indices into the batch.
    modification: the definition of the modification that ``call.modification`` names, or None. It is evaluated for each
    score in plain Python, which takes about a second for 300,000 scores.
    whole: None if the query token is the last token of its sequence. Otherwise, the number of tokens in the whole
    sequence, while ``call.seq_lens`` counts only the tokens up to the query token.
    """
    return torch.stack([_sequence(call, kv_cache_dtype, s, modification, whole) for s in rows])


def _sequence(
    call: Call, kv_cache_dtype: str, s: int, modification: Modification | None, whole: int | None
) -> torch.Tensor:
    """Return the float64 output for one sequence: a tensor [query heads, head size].

    A sink is a score that belongs to no token. If the call has sinks, the softmax state of each query head begins with
    the head's sink as the maximum. The arguments except ``s`` are as in ``truth``.

    s: the index of the sequence in the batch.
    """
    kv_heads, page = call.key_cache.shape[1], call.key_cache.shape[3]
    heads, size = call.query.shape[1:]
    query = call.query[s].double().view(kv_heads, heads // kv_heads, size) * call.scale
    length = int(call.seq_lens[s])
    m = torch.full((heads, 1), -math.inf, dtype=torch.float64)
    if call.sinks is not None:
        m = call.sinks.double().unsqueeze(1)
    z = (m > -math.inf).double()
    o = torch.zeros(heads, size, dtype=torch.float64)
    step = max(1, STRETCH // page) * page
    for start in range(window_start(call, length) // page * page, length, step):
        keys, values = _dense(call, kv_cache_dtype, s, start, min(step, length - start))
        scores = _changed(call, (query @ keys.transpose(1, 2)).view(heads, -1), start, length, modification, whole)
        top = torch.maximum(m, scores.amax(1, keepdim=True))
        floor = top.clamp_min(torch.finfo(torch.float64).min)
        weights, rescale = torch.exp(scores - floor), torch.exp(m - floor)
        sums = weights.view(kv_heads, -1, keys.shape[1]) @ values
        m, z, o = top, z * rescale + weights.sum(1, keepdim=True), o * rescale + sums.view(heads, size)
    return torch.where(z > 0, o / z.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(o))


def _dense(call: Call, kv_cache_dtype: str, s: int, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V of ``count`` tokens of the sequence ``s``: float64 tensors [kv heads, tokens, head size].

    start: the position of the first of these tokens.
    """
    _, kv_heads, _, page, _ = call.key_cache.shape
    size = call.query.shape[2]
    blocks = call.block_tables[s, start // page : -(-(start + count) // page)]
    keys = call.key_cache[blocks].permute(1, 0, 3, 2, 4).reshape(kv_heads, -1, size)[:, :count]
    values = call.value_cache[blocks].permute(1, 0, 3, 2).reshape(kv_heads, -1, size)[:, :count]
    k_scale, v_scale = (
        torch.as_tensor(scale, dtype=torch.float64).view(-1, 1, 1) for scale in (call.k_scale, call.v_scale)
    )
    return decode(keys, kv_cache_dtype, k_scale), decode(values, kv_cache_dtype, v_scale)


def _changed(
    call: Call,
    scores: torch.Tensor,
    start: int,
    length: int,
    modification: Modification | None,
    whole: int | None,
) -> torch.Tensor:
    """Return ``scores`` with the features of the call applied: softcap, ALiBi, modification, window, sparse pattern.

    ``oracle.score`` applies the features in the same way.

    scores: [query heads, tokens] float64, for the tokens from position ``start`` on.
    length: the number of tokens up to and including the query token.
    modification, whole: as in ``truth``.
    """
    count, heads = scores.shape[1], scores.shape[0]
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.alibi_slopes is not None:
        distances = torch.arange(start + 1 - length, start + 1 - length + count)
        scores = scores + call.alibi_slopes.double().unsqueeze(1) * distances
    if modification is not None:
        scores = torch.stack(
            [modified(call, h, scores[h], modification, start, whole or length, length - 1) for h in range(heads)]
        )
    scores[:, : max(0, window_start(call, length) - start)] = -math.inf
    if call.sparse is not None:
        scores = scores.masked_fill(_skipped(call, start, count, length), -math.inf)
    return scores


def _skipped(call: Call, start: int, count: int, length: int) -> torch.Tensor:
    """Return a bool tensor [query heads, tokens] that is true for the tokens that the block-sparse pattern leaves out.

    The tensor is for ``count`` tokens from position ``start`` on, in a sequence of ``length`` tokens.
    """
    assert call.sparse is not None
    page, heads, kv_heads = call.key_cache.shape[3], call.query.shape[1], call.key_cache.shape[1]
    group, pages = heads // kv_heads, range(start, start + count, page)  # blocks of the pattern are whole pages
    attended = [[attends(call.sparse, call, h, h // group, at, length) for at in pages] for h in range(heads)]
    return ~torch.tensor(attended).repeat_interleave(page, 1)[:, :count]
