"""Representatives of kernels with the same body: they show every fault of a body, and of each value of a constant."""

import random

import pytest

from pav2gen.runtime import library
from pav2gen.runtime.testing.representatives import (
    Source,
    cover,
    few,
    of_files,
    of_module,
    one_of_each_body,
    parse,
    representatives,
)

from .conftest import GENERATED

ROWS = [row for row in library.package_rows(GENERATED) if row.cuda]
SOURCES = {row.symbol: parse((GENERATED / row.cuda).read_text(), row.symbol[len("pav2_") :]) for row in ROWS}

TEXT = """// A kernel.
#include "../../runtime/cuda/pav2_args.h"

namespace small_hd64 {

using scalar_t = __half;  // query
constexpr int kHeadSize = 64;
constexpr int kThreads = 128;  // of a block
constexpr int kRows = ceil_div(kHeadSize, kThreads);
static_assert(sizeof(Shared) == 100, "as planned");

__global__ void kernel(Args a) {
    constexpr int kStep = 4;
    __syncthreads();
}
}  // namespace small_hd64
"""


def test_a_source_is_a_body_and_constants():
    source = parse(TEXT, "small_hd64")
    assert source.constants == {("scalar_t", "__half"), ("kHeadSize", "64"), ("kThreads", "128")}
    assert source.body == (
        '#include "../../runtime/cuda/pav2_args.h" namespace NAME { '
        "__global__ void kernel(Args a) { constexpr int kStep = 4; __syncthreads(); } }"
    )


@pytest.mark.parametrize(
    "old, new, same_body, same_constants",
    [
        ("// A kernel.", "// Another one.", True, True),
        ("small_hd64", "large_hd64", True, True),
        ("kHeadSize = 64", "kHeadSize = 80", True, False),
        ("scalar_t = __half", "scalar_t = float", True, False),
        ("== 100", "== 200", True, True),
        ("kStep = 4", "kStep = 8", False, True),
        ("    __syncthreads();\n", "", False, True),
        ("pav2_args.h", "pav2_other.h", False, True),
    ],
)
def test_what_tells_sources_apart(old, new, same_body, same_constants):
    one, other = parse(TEXT, "small_hd64"), parse(TEXT.replace(old, new), "small_hd64".replace(old, new))
    assert (one.body == other.body, one.constants == other.constants) == (same_body, same_constants)


def test_each_value_of_each_constant_of_each_body_is_in_a_representative():
    chosen = representatives(SOURCES)
    for source in SOURCES.values():
        alike = [SOURCES[name] for name in chosen if SOURCES[name].body == source.body]
        assert alike and source.constants <= frozenset().union(*(each.constants for each in alike))
    assert of_files({row.symbol: GENERATED / row.cuda for row in ROWS}) == chosen
    assert 20 < len(chosen) < 0.6 * len(SOURCES)


def test_the_constants_are_those_of_the_key():
    """Kernels that differ in the head size, the group, the page or the partition differ in their constants."""
    for row in ROWS:
        constants = dict(SOURCES[row.symbol].constants)
        assert constants["kHeadSize"] == str(row.key.head_size)
        if row.operator == "decode":
            held = [constants[name] for name in ("kGroupHeads", "kPageTokens", "kPartitionTokens")]
            assert held == [str(n) for n in (row.key.gqa_ratio, row.key.block_size, row.partition_size)]


@pytest.mark.parametrize("seed", range(20))
def test_a_cover_has_all_values_and_no_kernel_in_vain(seed):
    chance = random.Random(seed)
    group = {f"k{i}": frozenset((c, str(chance.randrange(4))) for c in "abcd") for i in range(chance.randrange(1, 12))}
    chosen = cover(group)
    for place, name in enumerate(chosen):
        earlier = frozenset().union(*(group[each] for each in chosen[:place]))
        assert place == 0 or group[name] - earlier
    assert frozenset().union(*group.values()) == frozenset().union(*(group[name] for name in chosen))


def test_kernels_of_another_body_are_not_left_out():
    same = frozenset({("kHeadSize", "64")})
    assert representatives({"a": Source("x", same), "b": Source("y", same), "c": Source("x", same)}) == {"a", "b"}
    assert representatives({"a": Source("x", frozenset()), "b": Source("x", frozenset())}) == {"a"}


def test_few_kernels_have_each_body_and_each_value_but_not_every_value_in_every_body():
    sources = {
        "a64": Source("x", frozenset({("kHeadSize", "64")})),
        "a80": Source("x", frozenset({("kHeadSize", "80")})),
        "b64": Source("y", frozenset({("kHeadSize", "64")})),
        "b80": Source("y", frozenset({("kHeadSize", "80")})),
    }
    assert representatives(sources) == {*sources}
    assert few(sources) in ({"a64", "b80"}, {"a80", "b64"})
    assert one_of_each_body(sources) == {"a64", "b64"}


def test_pytorch_kernels_of_the_same_body_differ_in_numbers():
    rows = [row for row in library.package_rows(GENERATED) if row.torch]
    found = {row.symbol: of_module(GENERATED, row) for row in rows}
    small, large = (f"pav2_qwen25_05b_hd64_g7_b16_f16_p{size}" for size in (256, 1024))
    other = "pav2_llama3_8b_hd128_g4_b16_f16_p256"
    assert found[small].body == found[large].body == found[other].body
    assert found[small].constants - found[large].constants == {("partition_size", "256")}
    assert {("head_size", "64"), ("gqa_ratio", "7")} <= found[small].constants - found[other].constants
    for name in (name for name in found if "sparse" in name or "sinks" in name or "cap50" in name or "e4m3" in name):
        assert found[name].body != found[small].body
