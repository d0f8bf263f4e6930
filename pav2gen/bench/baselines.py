"""What kernels are measured against: the plain algorithm that the project started from, and torch's own attention."""

from __future__ import annotations

import torch

from pav2gen.runtime.call import Call

PARTITION = 512


def seed_like(call: Call) -> None:
    """Split-KV decode as the seed of this project describes it: a loop over sequences, whole contexts in float32.

    Pages are gathered and permuted in the cache's dtype, keys and values converted as a whole, and matmuls broadcast
    over the query heads of a group (which eager PyTorch carries out by copying K and V for each head).
    """
    kv_heads, heads, size = call.key_cache.shape[1], call.query.shape[1], call.query.shape[2]
    group = heads // kv_heads
    for s, length in enumerate(call.seq_lens.tolist()):
        if not length:
            call.out[s].zero_()
            continue
        keys, values = (tensor.float() for tensor in dense(call, s, length))  # [tokens, kv heads, size]
        query = call.query[s].float().view(kv_heads, group, 1, size)
        scores = torch.matmul(query, keys.permute(1, 2, 0).contiguous().unsqueeze(1))
        partitions = -(-length // PARTITION)
        padded = torch.full((heads, partitions * PARTITION), float("-inf"), device=scores.device)
        padded[:, :length] = scores.view(heads, length) * call.scale
        parts = padded.view(heads, partitions, PARTITION)
        m = parts.amax(-1)
        weights = torch.exp(parts - m.unsqueeze(-1))
        z = weights.sum(-1)
        tail = torch.zeros(kv_heads, partitions * PARTITION, size, device=scores.device)
        tail[:, :length] = values.permute(1, 0, 2)
        sums = torch.matmul(
            weights.view(kv_heads, group, partitions, 1, PARTITION),
            tail.view(kv_heads, 1, partitions, PARTITION, size),
        ).view(heads, partitions, size)
        rescale = torch.exp(m - m.amax(-1, keepdim=True))
        out = torch.bmm(rescale.unsqueeze(1), sums).squeeze(1) / (rescale * z).sum(-1, keepdim=True)
        call.out[s] = out.to(call.out.dtype)


def sdpa(call: Call) -> None:
    """Gather to dense K and V, fold the heads of a group into the query axis, and call torch's own attention."""
    kv_heads, heads, size = call.key_cache.shape[1], call.query.shape[1], call.query.shape[2]
    for s, length in enumerate(call.seq_lens.tolist()):
        if not length:
            call.out[s].zero_()
            continue
        keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in dense(call, s, length))
        query = call.query[s].view(1, kv_heads, heads // kv_heads, size)
        out = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=call.scale)
        call.out[s] = out.view(heads, size)


def dense(call: Call, s: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of one sequence, gathered from its pages: [tokens, kv heads, head size] each."""
    _, kv_heads, _, page, _ = call.key_cache.shape
    blocks = call.block_tables[s, : -(-length // page)]
    size = call.query.shape[2]
    keys = call.key_cache[blocks].permute(0, 3, 1, 2, 4).reshape(-1, kv_heads, size)
    values = call.value_cache[blocks].permute(0, 3, 1, 2).reshape(-1, kv_heads, size)
    return keys[:length], values[:length]
