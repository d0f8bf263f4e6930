"""Layouts of CUDA extend kernels: they fit for every key that can be built, and a tile reads the cache once."""

import dataclasses
import itertools

import pytest

from pav2gen.family.target import find
from pav2gen.family.variant import ExtendVariant
from pav2gen.plan.cuda_geometry import KEY_LANES
from pav2gen.plan.extend_cuda import MOST_OUTPUTS, MOST_ROWS, ExtendCudaPlan, outputs, plan_extend_cuda
from pav2gen.runtime.choice.key import BLOCK_SIZES, HEAD_SIZES

CARD = find("bi-v100")
QWEN = ExtendVariant("qwen", 256, 6, 16, "float16", "auto", False, False)
DTYPES = [("float16", "auto"), ("float32", "auto"), ("float32", "int8"), ("bfloat16", "fp8_e4m3")]


def figures_fit(plan: ExtendCudaPlan) -> None:
    """The conditions of the static_asserts of a kernel, and the limits of a block."""
    v, g = plan.variant, plan.geometry
    span = min(g.step, v.block_size)
    assert plan.shared_bytes <= 48 << 10
    assert g.rows <= MOST_ROWS and outputs(v, g) <= MOST_OUTPUTS
    assert g.step % span == 0 and v.block_size % span == 0 and g.partition % v.block_size == 0
    assert g.step % (KEY_LANES * g.lane_keys) == 0
    assert span * v.cache_item_bytes % (4 * g.load_words) == 0
    assert span == v.block_size or span * v.cache_item_bytes >= 32  # whole sectors of a row of V
    assert g.threads % g.dim_lanes == 0 and g.dim_lanes % 64 == 0
    assert g.heads * plan.blocks_per_group >= v.gqa_ratio > g.heads * (plan.blocks_per_group - 1)
    assert plan.query_len >= 1


@pytest.mark.parametrize("target", ["bi-v100", "mr-v100", "sm_90"])  # loads of 8, 4 and 16 bytes
def test_a_layout_for_every_kind_of_key(target):
    for number, (size, ratio) in enumerate(itertools.product(HEAD_SIZES, (1, 2, 3, 5, 6, 8, 16, 71, 128))):
        dtype, kv = DTYPES[(size // 8 + ratio) % len(DTYPES)]
        page = BLOCK_SIZES[number % len(BLOCK_SIZES)]
        if size % (16 if kv != "auto" else 8) == 0:
            v = ExtendVariant("any", size, ratio, page, dtype, kv, False, False)
            figures_fit(plan_extend_cuda(v, find(target)))


def test_a_tile_of_eight_tokens_reads_the_cache_once():
    for kv in ("auto", "fp8_e4m3", "int8"):
        plan = plan_extend_cuda(dataclasses.replace(QWEN, kv_cache_dtype=kv), CARD)
        assert (plan.geometry.tokens, plan.blocks_per_group) == (8, 1)


def test_the_partials_are_a_tenth_of_the_keys_and_values():
    plan = plan_extend_cuda(QWEN, CARD)
    assert plan.partition_size == 1024  # 48 rows of 4 bytes, written and read; 1024 keys and values of 2 bytes: 9.4 %


def test_a_card_with_less_shared_memory_gets_smaller_tiles():
    plan = plan_extend_cuda(QWEN, CARD.with_overrides({"shared_memory_bytes": 32 << 10}))
    assert plan.shared_bytes <= 32 << 10
    assert (plan.geometry.heads, plan.geometry.tokens) == (6, 6)  # 36 rows of 512 bytes, and 16 keys in 8 KiB


def test_a_layout_that_cannot_fit_is_refused():
    large = dataclasses.replace(QWEN, head_size=512, dtype="float32")
    with pytest.raises(ValueError, match="fits 16384 bytes"):
        plan_extend_cuda(large, CARD.with_overrides({"shared_memory_bytes": 16 << 10}))


def test_the_partials_of_a_tile():
    plan = plan_extend_cuda(QWEN, CARD)
    assert plan.partials_bytes(num_heads=24, max_seq_len=1024) == 0  # one partition is written out at once
    assert plan.partials_bytes(num_heads=24, max_seq_len=1025) == 4 * 8 * 24 * 2 * 258
    windowed = plan_extend_cuda(dataclasses.replace(QWEN, sliding_window=1018), CARD)
    assert windowed.partials_bytes(num_heads=24, max_seq_len=32768) == 4 * 8 * 24 * 2 * 258
    longer = plan_extend_cuda(dataclasses.replace(QWEN, sliding_window=1019), CARD)
    assert longer.partials_bytes(num_heads=24, max_seq_len=32768) == 4 * 8 * 24 * 3 * 258


@pytest.mark.parametrize(
    ("ratio", "kv", "expected"),
    [
        (6, "auto", 20),  # 5 units of 25 rows: 125 / 6, and 5 tiles of 8 are 40
        (6, "int8", 18),  # 9 units of 12.5 rows: 112.5 / 6
        (1, "auto", 80),  # 5 tiles of 16, fewer than 125 rows
        (96, "auto", 1),  # 2 blocks read the cache, each for one token
    ],
)
def test_the_longest_query_that_prefers_the_kernel(ratio, kv, expected):
    v = dataclasses.replace(QWEN, gqa_ratio=ratio, kv_cache_dtype=kv)
    assert plan_extend_cuda(v, CARD).query_len == expected


def test_the_warps_score_equally_many_rows():
    plan = plan_extend_cuda(QWEN, CARD)
    g = plan.geometry
    items = g.row_slots // g.chunk_rows * (g.step // g.run_keys)
    assert items % (g.threads // CARD.warp_size) == 0
