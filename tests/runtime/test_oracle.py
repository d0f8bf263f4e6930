"""The reference against a second one: torch's own attention, in float64, on a dense copy of the cache."""

import math

import pytest
import torch

from pav2gen.runtime.call import BlockSparse
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.testing.cases import Case, make
from pav2gen.runtime.testing.oracle import attends, excess, reference


def key(**options):
    defaults = dict(head_size=64, gqa_ratio=3, block_size=16, dtype="float32", kv_cache_dtype="auto")
    return Key(**{**defaults, "alibi": False, "blocksparse": False, **options})


def dense(call, s):
    """K and V of one sequence by fancy indexing: [kv heads, tokens, head size]."""
    page, length = call.key_cache.shape[3], int(call.seq_lens[s])
    blocks = call.block_tables[s, : -(-length // page)].long()
    k = call.key_cache[blocks].permute(1, 0, 3, 2, 4).flatten(3).flatten(1, 2)[:, :length]
    v = call.value_cache[blocks].permute(1, 0, 3, 2).flatten(1, 2)[:, :length]
    return k.double(), v.double()


@pytest.mark.parametrize("alibi", [False, True])
def test_the_reference_is_torch_s_attention(alibi):
    call = make(Case(key(alibi=alibi), 64, (1, 16, 100, 0, 129)))
    truth = reference(call, "auto", 64)
    for s, length in enumerate(call.seq_lens.tolist()):
        if not length:
            assert not truth.out[s].any()
            continue
        k, v = (tensor.repeat_interleave(3, 0) for tensor in dense(call, s))
        bias = torch.zeros(6, 1, length, dtype=torch.float64)
        if alibi:
            bias += call.alibi_slopes.double().view(6, 1, 1) * (torch.arange(length) - length + 1)
        q = call.query[s].double().unsqueeze(1)
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=call.scale)
        torch.testing.assert_close(truth.out[s], expected.squeeze(1), rtol=1e-12, atol=1e-12)


def test_partitions_combine_to_the_whole():
    call = make(Case(key(), 64, (200,)))
    truth = reference(call, "auto", 64)
    for h, parts in enumerate(truth.partitions[0]):
        top = max(part.m for part in parts)
        weights = [part.z * math.exp(part.m - top) for part in parts]
        whole = sum(weight * part.o for weight, part in zip(weights, parts)) / sum(weights)
        torch.testing.assert_close(whole, truth.out[0, h], rtol=1e-12, atol=1e-12)


def test_the_block_sparse_pattern_by_hand():
    # 8 blocks of 16 tokens, stride 4, one local block, no sliding: 3 and 7 by stride, (k + 1) % 4, and 7 as local.
    call = make(Case(key(), 64, (128,)))
    pattern = BlockSparse(local_blocks=1, vert_stride=4, block_size=16, head_sliding_step=0, tp_rank=0)
    attended = sorted({position // 16 for position in range(128) if attends(pattern, call, 0, 0, position, 128)})
    assert attended == [3, 7]
    sliding = pattern._replace(head_sliding_step=1)  # offset 1 + head: head 2 has blocks 1 and 5
    assert sorted({p // 16 for p in range(128) if attends(sliding, call, 2, 0, p, 128)}) == [1, 5, 7]
    by_kv_head = pattern._replace(head_sliding_step=-1, tp_rank=1)  # offset 1 + 2 * 1 + KV head 1 = 4
    assert sorted({p // 16 for p in range(128) if attends(by_kv_head, call, 5, 1, p, 128)}) == [0, 4, 7]


def test_the_measure():
    truth = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert excess(truth.float(), truth) == 0
    assert excess(truth.float() * (1 + 1.9e-6), truth) < 1 < excess(truth.float() * (1 + 2.3e-6), truth)
    assert excess(torch.tensor([[math.nan, 4.0]]), truth) == math.inf
    assert excess(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.float64)) == 0
    assert excess(torch.full((1, 2), 1e-30), torch.zeros(1, 2, dtype=torch.float64)) == math.inf


def test_one_rounding_to_half_is_right_and_two_are_not():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(64, 256, generator=generator, dtype=torch.float64)
    once = truth.half()
    assert 0.7 < excess(once, truth) < 0.9
    twice = (truth.bfloat16().float() * 1.0001).half()
    assert excess(twice, truth) > 1
