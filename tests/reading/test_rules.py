"""Each rule has an id, a reason and a spec that breaks it; what its sentence advises works."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pav2gen.errors import UserError
from pav2gen.family.axes import AXES
from pav2gen.plan.torch_plan import smallest_workspace_bytes
from pav2gen.reading import spec_checks
from pav2gen.reading.rule import AxisRule
from pav2gen.reading.rules import RULES, check
from pav2gen.reading.spec_file import Spec, parse, variants
from pav2gen.runtime.choice.dispatch_row import MIB

GOOD = """\
schema: 1
name: small
target: bi-v100
model: {num_heads: 24, num_kv_heads: 4, max_seq_len: 32768, tensor_parallel: [1, 8]}
axes:
  head_size: [128, 256]
  gqa_ratio: [3, 6]
  partition_size: [64, 512]
  block_size: [16, 32]
  dtype: [float16]
  kv_cache_dtype: [auto, fp8_e5m2]
features: {alibi: false, softcap: null, modification: null}
exclude:
  - when: {block_size: 32, partition_size: 64}
    because: small partitions of large pages
dispatch: {partition: auto}
limits: {workspace_mib: 16}
backends: [torch, cuda]
cuda: {threads: 256, step: 256}
"""

#: From its block sizes on.
TAIL = GOOD[GOOD.index("[16, 32]") :]

#: From its lengths to its features; and a modification.
LONG = GOOD[GOOD.index("max_seq_len") : GOOD.index("\nexclude")]
#: From its target to its dtypes.
KEYS = GOOD[GOOD.index("target") : GOOD.index("\n  kv_cache_dtype")]
SMALL_CARD = "target: {base: bi-v100, shared_memory_bytes: 16384}\noperators: [decode, extend]"
NONE, ONE = "modification: null}", "modification: near}\nmodifications: {near: {mask: q - k < 9}}"

#: rule -> (what is replaced, by what): a spec that breaks this rule, and none before it.
BREAKS = {
    "head-size": ("[128, 256]", "[128, 260]"),
    "gqa-ratio": ("[3, 6]", "[3, 6, 0]"),
    "partition-size": ("[64, 512]", "[64, 4096]"),
    "block-size": ("[16, 32]", "[16, 32, 48]"),
    "dtype": ("[float16]", "[half]"),
    "kv-cache-dtype": ("fp8_e5m2]", "int4]"),
    "softcap-positive": ("softcap: null", "softcap: 0.0"),
    "window-positive": ("softcap: null", "sliding_window: 0"),
    "modification-defined": ("modification: null", "modification: near"),
    "positions-fit": (LONG, LONG.replace("32768", "1073741825").replace(NONE, ONE)),
    "kv-heads-divide-heads": ("num_kv_heads: 4", "num_kv_heads: 7"),
    "ranks-split-heads": ("[1, 8]", "[1, 6]"),
    "product-within-limit": ("{workspace_mib: 16}", "{workspace_mib: 16, max_variants: 31}"),
    "exclusion-on-axes": ("{block_size: 32,", "{block_size: 64,"),
    "exclusion-excludes": ("exclude:", "exclude:\n  - {when: {block_size: 32}, because: the next says the same}"),
    "whole-blocks": ("[16, 32]", "[16, 32, 128]"),
    "whole-groups": ("[128, 256]", "[128, 120]"),
    "ranks-served": ("[3, 6]", "[6]"),
    "extend-is-dense": ("features: {alibi: false,", "operators: [decode, extend]\nfeatures: {blocksparse: true,"),
    "fixed-partition-built": ("partition: auto", "partition: 256"),
    "cuda-layout-known": ("threads: 256", "threads: 192"),
    "cuda-step-holds-a-page": (TAIL, TAIL.replace("32", "128").replace("step: 256", "step: 64")),
    "grid-holds-partitions": ("max_seq_len: 32768", "max_seq_len: 4194241"),
    "extend-fits-shared-memory": (
        KEYS,
        KEYS.replace("target: bi-v100", SMALL_CARD).replace("256]", "512]").replace("float16", "float32"),
    ),
    "workspace-holds-a-partition": ("workspace_mib: 16", "workspace_mib: 5"),
    "workspace-holds-a-tile": (
        "max_seq_len: 32768, tensor_parallel: [1, 8]}",
        "max_seq_len: 131072, tensor_parallel: [1, 8]}\noperators: [decode, extend]",
    ),
}  # fmt: skip


def broken(id: str) -> str:
    """A spec that breaks the rule ``id``."""
    old, new = BREAKS[id]
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def answer(text: str) -> str:
    """The message that ``text`` is answered with."""
    with pytest.raises(UserError) as raised:
        parse(text.encode(), "small.yaml")
    return str(raised.value)


def test_the_good_spec_keeps_every_rule() -> None:
    spec = parse(GOOD.encode(), "small.yaml")
    assert len(variants(spec)) == 32 - 8
    check(spec)


def test_ids_are_unique_words_and_reasons_are_sentences() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", id) for id in ids)
    assert all(len(rule.reason) > 20 and not rule.reason.endswith(".") for rule in RULES)


def test_every_rule_is_broken_here() -> None:
    assert {rule.id for rule in RULES} == set(BREAKS)


@pytest.mark.parametrize("id", BREAKS)
def test_a_broken_rule_is_named(id: str) -> None:
    assert answer(broken(id)).endswith(f" (rule {id})")


@pytest.mark.parametrize("id", ["whole-blocks", "whole-groups"])
def test_the_exclusion_that_is_advised_removes_the_mistake(id: str) -> None:
    """Following the advice again and again leads to a spec that loads: every wrong point is named in turn."""
    text = broken(id)
    for _ in range(8):
        message = answer(text)
        entry = re.search(r"or exclude: (- \{when: .*, because: \.\.\.\}) \(rule ", message)
        assert entry, message
        text = text.replace("exclude:\n", f"exclude:\n  {entry[1].replace('...', 'advised')}\n")
        try:
            spec = parse(text.encode(), "small.yaml")
        except UserError:
            continue
        assert all(v.partition_size % v.block_size == 0 and v.head_size % v.grain == 0 for v in variants(spec))
        return
    pytest.fail("the advice leads nowhere")


def test_the_line_of_ratios_that_is_advised_serves_the_ranks() -> None:
    advice = re.search(r"write (gqa_ratio: \[.*?\])", answer(broken("ranks-served")))
    assert advice
    parse(broken("ranks-served").replace("gqa_ratio: [6]", advice[1]).encode(), "small.yaml")


def test_a_grid_holds_65535_partitions() -> None:
    parse(GOOD.replace("32768", "4194240").encode(), "small.yaml")  # 65535 x 64
    long = GOOD.replace("32768", "4194241")
    message = "max_seq_len 4194241 has 65536 partitions of 64 tokens, but a CUDA grid at most 65535"
    works = "take partition_size 128 or more, or leave cuda out of the backends"
    assert answer(long) == f"small.yaml:8: {message}; {works} (rule grid-holds-partitions)"
    parse(long.replace("[torch, cuda]\ncuda: {threads: 256, step: 256}", "[torch]").encode(), "small.yaml")
    assert "; leave cuda out of the backends" in answer(GOOD.replace("32768", "2147483647"))


def test_a_rank_whose_ratio_is_excluded_is_not_served() -> None:
    text = GOOD.replace("exclude:\n", "exclude:\n  - {when: {gqa_ratio: 3}, because: nobody has 8 cards}\n")
    message = "each of 8 ranks has ratio 3 (3 heads over 1), which no variant serves; exclude less (rule ranks-served)"
    assert answer(text) == f"small.yaml:4: {message}"


def test_a_fixed_partition_must_be_there_for_every_key() -> None:
    text = GOOD.replace("partition: auto", "partition: 64")
    message = answer(text)
    assert message.startswith("small.yaml:16: dispatch.partition 64 is excluded for {head_size: 128, gqa_ratio: 3,")
    assert "block_size: 32" in message
    parse(GOOD.replace("partition: auto", "partition: 512").encode(), "small.yaml")


def test_the_workspace_that_is_advised_is_the_least_that_works() -> None:
    """The figure is the plan's, for all KV heads of one rank: 4 of them with ratio 6, 1 with ratio 3."""
    needed = re.search(r"raise it to (\d+)", answer(broken("workspace-holds-a-partition")))
    assert needed
    spec = parse(GOOD.encode(), "small.yaml")
    heads = {6: 4, 3: 1}
    largest = max(smallest_workspace_bytes(variant, heads[variant.gqa_ratio]) for variant in variants(spec))
    for size, keeps in ((-(-largest // MIB), True), (-(-largest // MIB) - 1, False)):
        text = GOOD.replace("workspace_mib: 16", f"workspace_mib: {size}").encode()
        if keeps:
            parse(text, "small.yaml")
        else:
            with pytest.raises(UserError, match="rule workspace-holds-a-partition"):
                parse(text, "small.yaml")


def test_the_workspace_holds_a_piece_of_an_extend_kernel() -> None:
    """Its pieces have hundreds of keys, whatever the partitions of the decode kernels are."""
    short = GOOD.replace("[64, 512]", "64").replace("exclude:\n", "exclude: []\n").replace("partition: auto", "")
    short = re.sub(r"  - when: .*\n    because: .*\n|cuda: .*\n", "", short).replace("[torch, cuda]", "torch")
    short = short.replace("workspace_mib: 16", "workspace_mib: 1")
    parse(short.encode(), "small.yaml")
    found = re.search(
        r"of (extend_\w+) needs (\d+) MiB.*raise it to \2 ", answer(f"{short}operators: [decode, extend]\n")
    )
    assert found
    parse(f"{short}operators: [decode, extend]\n".replace("mib: 1}", f"mib: {found[2]}}}").encode(), "small.yaml")


def test_the_workspace_that_a_tile_needs_is_the_plan_s() -> None:
    """24 heads of 256, 8 query tokens, 128 partitions of 1024 keys: 258 floats for each, 25,362,432 bytes."""
    text = broken("workspace-holds-a-tile")
    assert "of 8 query tokens and 24 heads of extend_hd256_g6_b16_f16 need 25 MiB" in answer(text)
    parse(text.replace("workspace_mib: 16", "workspace_mib: 25").encode(), "small.yaml")
    parse(text.replace("[torch, cuda]\ncuda: {threads: 256, step: 256}", "torch").encode(), "small.yaml")


def test_the_heads_of_the_least_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variant is asked about with the most KV heads that a rank of its ratio has."""
    asked: dict[int, set[int]] = {}

    def remember(variant: object, num_kv_heads: int) -> int:
        asked.setdefault(variant.gqa_ratio, set()).add(num_kv_heads)  # type: ignore[attr-defined]
        return 1

    monkeypatch.setattr(spec_checks, "smallest_workspace_bytes", remember)
    parse(GOOD.replace("[1, 8]", "[2, 1, 8, 4]").replace("[3, 6]", "[3, 6, 5]").encode(), "small.yaml")
    assert asked == {3: {1}, 6: {4}, 5: {4}}  # no rank has ratio 5: as if the rank were the whole model


def test_a_layout_without_cuda_kernels_is_without_effect() -> None:
    message = answer(GOOD.replace("[torch, cuda]", "torch"))
    assert message.startswith("small.yaml:19: no CUDA kernel is built") and message.endswith("(rule cuda-layout-known)")


def test_a_layout_without_decode_kernels_is_without_effect() -> None:
    message = answer(GOOD + "operators: [extend, cache]\n")
    assert message == (
        "small.yaml:19: this setting applies to decode kernels alone; write operators: [decode, extend, cache], or "
        "remove cuda (rule cuda-layout-known)"
    )


def test_a_spec_made_in_memory_is_held_to_the_rules_as_well() -> None:
    spec = parse(GOOD.encode(), "small.yaml")
    edited: Spec = replace(spec, axes={**spec.axes, "head_size": (128, 77)})
    with pytest.raises(UserError, match=r"^small.yaml:6: head_size cannot be 77: .* nearest is 80 \(rule head-size\)$"):
        check(edited)
    with pytest.raises(UserError, match=r"^small.yaml: head_size cannot be 77"):
        check(replace(edited, places={}))


#: Values at both sides of every bound.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "head_size": ([32, 40, 80, 120, 248, 256, 512], [0, 24, 31, 33, 100, 260, 264, 504, 520, -32]),
    "gqa_ratio": ([1, 5, 71, 128], [0, -1, 129]),
    "softcap": ([None, 0.001, 30.0, 1e6], [0.0, -30.0, 0.0009, 1.1e6]),
    "sliding_window": ([None, 1, 4096, 1 << 30], [0, -1, (1 << 30) + 1]),
    "partition_size": ([64, 128, 2048], [32, 65, 96, 4096, 0]),
    "block_size": ([8, 16, 32, 64, 128], [0, 1, 4, 12, 24, 256]),
    "dtype": (["float16", "bfloat16", "float32"], ["float64", "half", ""]),
    "kv_cache_dtype": (["auto", "fp8_e4m3", "fp8_e5m2", "int8"], ["fp8", "int4"]),
}


def test_the_bounds_of_each_axis() -> None:
    axis_rules = {rule.axes[0]: rule for rule in RULES if isinstance(rule, AxisRule) and len(rule.axes) == 1}
    assert set(axis_rules) == set(VALUES)
    for axis, (right, wrong) in VALUES.items():
        assert [value for value in right if axis_rules[axis].complaint(value)] == []
        assert [value for value in wrong if not axis_rules[axis].complaint(value)] == []


def test_whole_groups_are_groups_of_the_cache_layout() -> None:
    """The rule says no exactly where the head size is no multiple of the 16-byte grain of the variant's cache."""
    spec = parse(GOOD.encode(), "small.yaml")
    (rule,) = (rule for rule in RULES if rule.id == "whole-groups")
    assert isinstance(rule, AxisRule)
    for variant in variants(spec):
        for head_size in AXES["head_size"].allowed:
            point = replace(variant, head_size=head_size)
            assert bool(rule.complaint(head_size, point.kv_cache_dtype)) == (head_size % point.grain != 0)


def test_a_spec_of_cuda_kernels_has_no_limit_of_a_pytorch_workspace() -> None:
    text = GOOD.replace("workspace_mib: 16", "workspace_mib: 5")
    with pytest.raises(UserError, match="rule workspace-holds-a-partition"):
        parse(text.encode(), "small.yaml")
    parse(text.replace("backends: [torch, cuda]", "backends: [cuda]").encode(), "small.yaml")
