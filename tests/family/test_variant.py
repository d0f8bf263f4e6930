"""Every name that derives from a variant is unique, short, and what a C compiler and Python take."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pav2gen.family.axes import AXES, DTYPE_TAGS, KV_TAGS, PARTITION_SIZES
from pav2gen.family.spec import points
from pav2gen.family.variant import (
    ITEM_BYTES,
    LONGEST_SYMBOL,
    OPERATORS,
    CacheVariant,
    Point,
    Variant,
    expand,
    extenders_of,
    writers_of,
)
from pav2gen.reading.spec_file import LONGEST_NAME, load
from pav2gen.runtime.choice.key import BLOCK_SIZES, GQA_RATIOS, HEAD_SIZES, KV_ALIASES, MOST_TOKENS, Key
from pav2gen.runtime.choice.key import LONGEST_NAME as LONGEST_MODIFICATION

SPECS = Path(__file__).parents[2] / "specs"

VARIANTS = st.builds(
    Variant,
    spec=st.from_regex(r"[a-z][a-z0-9]{0,9}(_[a-z0-9]{1,6}){0,3}", fullmatch=True).filter(
        lambda name: len(name) <= LONGEST_NAME and not keyword.iskeyword(name)
    ),
    head_size=st.sampled_from(HEAD_SIZES),
    gqa_ratio=st.sampled_from(GQA_RATIOS),
    block_size=st.sampled_from(BLOCK_SIZES),
    dtype=st.sampled_from(list(DTYPE_TAGS)),
    kv_cache_dtype=st.sampled_from(list(KV_TAGS)),
    alibi=st.booleans(),
    blocksparse=st.booleans(),
    partition_size=st.sampled_from(PARTITION_SIZES),
    softcap=st.none() | st.floats(1e-3, 1e6),
    sliding_window=st.none() | st.integers(1, MOST_TOKENS),
    sinks=st.booleans(),
    modification=st.none()
    | st.from_regex(r"[a-z][a-z0-9]{0,9}(_[a-z0-9]{1,4}){0,2}", fullmatch=True)
    | st.sampled_from(["sinks", "p64", "w8", "mod_a", "n" * LONGEST_MODIFICATION]),
)


def names(variant: Point) -> tuple[str, str, str, str]:
    """Everything that must differ between any two variants of any two specs."""
    return variant.symbol, variant.torch_path, variant.cuda_path, variant.test_path


def check_names(family: Iterable[Point]) -> None:
    """Raises AssertionError where a name is no name, too long, or given twice."""
    seen: dict[str, Point] = {}
    for variant in family:
        assert re.fullmatch(r"pav2_[a-z0-9_]+", variant.symbol) and "__" not in variant.symbol
        for path in map(PurePosixPath, names(variant)[1:]):
            assert not path.is_absolute() and ".." not in path.parts
            assert all(len(part) <= LONGEST_SYMBOL for part in path.parts)
        for module in (variant.torch_path, variant.test_path):
            ast.parse(f"import {PurePosixPath(module).with_suffix('').as_posix().replace('/', '.')}")
        assert len(variant.symbol) <= LONGEST_SYMBOL
        assert len(variant.symbol) < 100 or getattr(variant, "features", ())
        for name in names(variant):
            assert seen.setdefault(name, variant) == variant, name


def test_the_names_of_the_committed_specs() -> None:
    family = [point for path in SPECS.glob("*.yaml") for point in points(load(path))]
    assert len(family) > 40
    check_names(family)
    assert len({(variant.spec, variant.slug) for variant in family}) == len(family)


@given(st.lists(VARIANTS, max_size=40))
@settings(max_examples=200)
def test_the_names_of_any_variants(family: list[Variant]) -> None:
    check_names([point for kernels in OPERATORS.values() for point in kernels(family)])


@given(VARIANTS, VARIANTS)
@settings(max_examples=300)
def test_two_variants_have_one_name_only_if_they_are_one(one: Variant, other: Variant) -> None:
    assert (one.symbol == other.symbol) == (one == other)
    assert (one.slug == other.slug) == (one.key == other.key and one.partition_size == other.partition_size)


@pytest.mark.parametrize("name", ["a", "a_hd64_g1_b16_f16_p64", "hd64", "p64"])
def test_a_spec_named_like_a_slug_takes_no_name_of_another(name: str) -> None:
    point = (64, 1, 16, "float16", "auto", False, False)
    check_names([Variant(spec, *point, partition_size=64) for spec in (name, "b", "a")])


def longest(axis: str, values: Iterable[object]) -> object:
    """The value of an axis that takes the most characters in a name."""
    return max(values, key=lambda value: len(AXES[axis].tag(value)))


def test_the_longest_names() -> None:
    values = {axis: longest(axis, known.allowed) for axis, known in AXES.items() if known.allowed}
    values |= {"alibi": True, "blocksparse": True, "sinks": True, "modification": "n" * LONGEST_MODIFICATION}
    values |= {"softcap": 0.0010000000000000002, "sliding_window": MOST_TOKENS}  # a float has 17 digits at most
    assert values.keys() == AXES.keys()
    variant = Variant("n" * LONGEST_NAME, **values)  # type: ignore[arg-type]
    check_names([variant, *extenders_of([variant]), *writers_of([variant])])
    start = f"hd{values['head_size']}_g{values['gqa_ratio']}_b128_bf16_{KV_TAGS['fp8_e4m3'][1:]}_alibi_sparse"
    end = f"_sinks_mod_{'n' * LONGEST_MODIFICATION}_p{values['partition_size']}"
    assert variant.slug == f"{start}_cap0p0010000000000000002_w{MOST_TOKENS}{end}"
    assert len(PurePosixPath(variant.test_path).name) > LONGEST_SYMBOL - 10, "the bound is close to the truth"


def test_the_longest_names_of_plain_kernels_and_of_cache_writers() -> None:
    axes = (256, 128, 128, "bfloat16", "fp8_e4m3")
    plain = Variant("n" * LONGEST_NAME, *axes, False, False, partition_size=2048)
    check_names([plain])
    writer = CacheVariant("n" * LONGEST_NAME, 256, 128, "bfloat16", "fp8_e4m3")
    for point in (plain, writer):
        parts = [part for name in (point.torch_path, point.cuda_path, point.test_path) for part in name.split("/")]
        assert max(map(len, [point.symbol, *parts])) < 100


def test_each_key_has_one_extend_kernel() -> None:
    variant = Variant("qwen36", 256, 6, 16, "float16", "auto", False, False, partition_size=512)
    family = [variant, replace(variant, partition_size=256), replace(variant, sliding_window=128)]
    plain, windowed = extenders_of(family)
    assert (plain.slug, windowed.slug) == ("extend_hd256_g6_b16_f16", "extend_hd256_g6_b16_f16_w128")
    assert plain.key == variant.key and "partition_size" not in plain.axes
    assert plain.test_path == "qwen36/tests/test_qwen36_extend_hd256_g6_b16_f16.py"
    assert windowed.features == ("window 128",)


def test_the_names_of_one_variant() -> None:
    variant = Variant("qwen36", 256, 6, 16, "float16", "auto", False, False, partition_size=512)
    assert variant.slug == "hd256_g6_b16_f16_p512"
    assert variant.symbol == "pav2_qwen36_hd256_g6_b16_f16_p512"
    assert variant.torch_path == "qwen36/torch_kernels/hd256_g6_b16_f16_p512.py"
    assert variant.cuda_path == "qwen36/cuda_kernels/hd256_g6_b16_f16_p512.cu"
    assert variant.test_path == "qwen36/tests/test_qwen36_hd256_g6_b16_f16_p512.py"
    assert variant.key == Key(256, 6, 16, "float16", "auto", False, False)


@pytest.mark.parametrize(
    ("dtype", "cache", "item_bytes", "grain"),
    [("float16", "auto", 2, 8), ("bfloat16", "auto", 2, 8), ("float32", "auto", 4, 4), ("float32", "fp8_e5m2", 1, 16)],
)
def test_the_grain_is_16_bytes_of_the_cache(dtype: str, cache: str, item_bytes: int, grain: int) -> None:
    variant = Variant("a", 64, 1, 32, dtype, cache, False, False, partition_size=256)
    assert (variant.cache_item_bytes, variant.grain, variant.pages_per_partition) == (item_bytes, grain, 8)


def test_the_tables_of_names_agree() -> None:
    assert DTYPE_TAGS.keys() == ITEM_BYTES.keys()
    assert set(KV_ALIASES.values()) <= KV_TAGS.keys()
    assert set(AXES) == {*Key._fields, "partition_size"}
    for tags in (DTYPE_TAGS, KV_TAGS):
        assert len(set(tags.values())) == len(tags)


def test_the_product_has_its_last_axis_fastest() -> None:
    axes: dict[str, tuple[object, ...]] = {axis: (1,) for axis in AXES}
    axes |= {"head_size": (2, 1), "alibi": (False, True), "partition_size": (7, 5)}
    points = [(v.head_size, v.alibi, v.partition_size) for v in expand("x", axes)]
    assert points == [(h, a, p) for h in (2, 1) for a in (False, True) for p in (7, 5)]
