"""Runs extend calls in two ways: with the operator of a generated package, and with torch's attention over gathered K
and V.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch.nn.functional import scaled_dot_product_attention

from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.extend.call import ExtendCall

#: ``sdpa`` passes at most this many query tokens to one call of torch's attention, because the sizes of the mask and of
#: the scores are proportional to this number.
PIECE = 128


def operate(package: ModuleType, call: ExtendCall, row: Row, backend: str) -> None:
    """Call the extend operator of ``package`` with arguments that make it run the kernel of ``row`` for ``backend``."""
    names = [name for name, _ in row.modification.tensors] if row.modification else []
    package.paged_attention_extend(
        *(call.out, call.query, call.key_cache, call.value_cache, call.key_cache.shape[1], call.scale),
        *(call.block_tables, call.query_start_loc, call.seq_lens, row.key.block_size),
        *(call.max_query_len, call.max_seq_len, call.alibi_slopes, row.key.kv_cache_dtype, call.k_scale, call.v_scale),
        softcap=call.softcap,
        sliding_window=call.sliding_window,
        sinks=call.sinks,
        modification=call.modification,
        modification_tensors=dict(zip(names, call.tensors)),
        backend=backend,
    )


def sdpa(call: ExtendCall) -> None:
    """Gather K and V of each sequence from its pages, and call torch's attention with an explicit mask.

    Each call of torch's attention takes up to ``PIECE`` query tokens of one sequence, and all keys up to the last of
    these tokens. The query heads that share a KV head are passed as query tokens of one head, so that K and V are not
    repeated.
    """
    kv_heads, (_, heads, size) = call.key_cache.shape[1], call.query.shape
    group = heads // kv_heads
    starts, lengths = call.query_start_loc.tolist(), call.seq_lens.tolist()
    for s, length in enumerate(lengths):
        keys, values = gathered(call, s, length)
        context = length - (starts[s + 1] - starts[s])
        for first in range(starts[s], starts[s + 1], PIECE):
            rows = slice(first, min(first + PIECE, starts[s + 1]))
            count, begin = rows.stop - rows.start, context + rows.start - starts[s]
            query = call.query[rows].view(count, kv_heads, group, size).permute(1, 2, 0, 3)
            end = begin + count
            positions = torch.arange(end, device=query.device)
            mask = (positions <= positions[begin:].unsqueeze(1)).repeat(group, 1)  # [group * count, end]
            out = scaled_dot_product_attention(
                query.reshape(1, kv_heads, group * count, size),
                keys[:, :, :end],
                values[:, :, :end],
                attn_mask=mask,
                scale=call.scale,
            )
            call.out[rows] = out.view(kv_heads, group, count, size).permute(2, 0, 1, 3).reshape(count, heads, size)


def sdpa_causal(call: ExtendCall) -> None:
    """Gather K and V of each sequence from its pages, and call torch's causal attention.

    All tokens of every sequence must be new tokens.
    """
    starts, lengths = call.query_start_loc.tolist(), call.seq_lens.tolist()
    for s, length in enumerate(lengths):
        keys, values = gathered(call, s, length)
        query = call.query[starts[s] : starts[s + 1]].transpose(0, 1).unsqueeze(0)
        out = scaled_dot_product_attention(query, keys, values, is_causal=True, scale=call.scale, enable_gqa=True)
        call.out[starts[s] : starts[s + 1]] = out[0].transpose(0, 1)


def gathered(call: ExtendCall, s: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather K and V of one sequence from its pages: two tensors [1, kv heads, tokens, head size].

    s: the index of the sequence in the batch.
    length: the number of tokens in the sequence.
    """
    _, kv_heads, _, page, _ = call.key_cache.shape
    blocks = call.block_tables[s, : -(-length // page)]
    size = call.query.shape[2]
    keys = call.key_cache[blocks].permute(1, 0, 3, 2, 4).reshape(1, kv_heads, -1, size)
    values = call.value_cache[blocks].permute(1, 0, 3, 2).reshape(1, kv_heads, -1, size)
    return keys[:, :, :length], values[:, :, :length]
