"""``explain`` says which kernels serve a key, or what stands against it; and what it advises adds the key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pav2gen.commands.explain import explain, read_query, read_value
from pav2gen.commands.explanation import AxisEdit, Explanation, differing_axes
from pav2gen.errors import UserError
from pav2gen.family.axes import AXES, DTYPE_TAGS, KV_TAGS
from pav2gen.family.variant import OPERATORS
from pav2gen.reading.spec_file import Spec, parse, variants
from pav2gen.runtime.choice.key import GQA_RATIOS, HEAD_SIZES
from pav2gen.runtime.choice.miss import distance

TWO_AXES = """\
schema: 1
name: large
target: bi-v100
model: {num_heads: 24, num_kv_heads: 4, max_seq_len: 32768}
axes:
  head_size: [256]
  gqa_ratio: [6]
  block_size: [16, 32]
  partition_size: [256, 512]
exclude:
  - when: {block_size: 32, partition_size: 256}
    because: rare
limits: {max_variants: 8}
"""

PHI = """\
schema: 1
name: phi
target: bi-v100
model: {num_heads: 32, num_kv_heads: 32, max_seq_len: 2048}
axes:
  head_size:
    - 80
  gqa_ratio: [1]
features:
  alibi: false
"""

BRACES = """\
schema: 1
name: braces
target: bi-v100
model: {num_heads: 24, num_kv_heads: 4, max_seq_len: 32768}
axes: {head_size: [256], gqa_ratio: 6,
  partition_size: [256, 512]}
features: {sliding_window: null, alibi: false}
limits: {max_variants: 8}
"""


@pytest.fixture
def specs() -> list[Spec]:
    return [parse(TWO_AXES.encode(), "specs/large.yaml"), parse(PHI.encode(), "specs/phi.yaml")]


def ask(specs: list[Spec], *words: str) -> Explanation:
    """The explanation of a query as it is typed."""
    return explain(read_query(words), specs)


def test_a_served_key_names_its_kernels(specs: list[Spec]) -> None:
    found = ask(specs, "head_size=256", "gqa_ratio=6", "block_size=16")
    assert [variant.slug for variant in found.served] == ["hd256_g6_b16_f16_p256", "hd256_g6_b16_f16_p512"]
    assert found.lines() == (
        "head_size=256 gqa_ratio=6 block_size=16: 2 kernels serve it",
        "  large  hd256_g6_b16_f16_p256",
        "  large  hd256_g6_b16_f16_p512",
        "for extend and cache: no kernel; to add some, write",
        "  specs/large.yaml, at its end: operators: [decode, extend, cache]",
        "and run  pav2gen build specs/large.yaml",
    )


def test_an_operator_that_the_spec_cannot_have_is_not_advised() -> None:
    """Block-sparse kernels bar extend, so only the cache writers can be added."""
    spec = parse((PHI + "  blocksparse: [false, true]\noperators: decode\n").encode(), "specs/phi.yaml")
    assert ask([spec], "head_size=80").lines()[3:] == (
        "for cache: no kernel; to add some, write",
        "  specs/phi.yaml:12: operators: [decode, cache]",
        "and run  pav2gen build specs/phi.yaml",
    )
    lines = ask([spec], "head_size=80", "operator=extend").lines()
    assert lines[0] == "head_size=80: no extend kernel serves it"
    assert (
        "  specs/phi.yaml: there are no block-sparse extend kernels; write features: {blocksparse: false}" in lines[-2]
    )
    assert lines[-1].startswith("no spec here can be extended to serve it")
    assert any(
        "blocksparse cannot be true for extend" in line
        for line in ask([spec], "blocksparse=true", "operator=extend").lines()
    )


def test_an_operator_that_no_spec_builds_is_a_line_to_add(specs: list[Spec]) -> None:
    assert ask(specs, "head_size=80", "operator=extend").lines() == (
        "head_size=80: no extend kernel serves it",
        "for decode:",
        "  phi  hd80_g1_b16_f16_p512",
        "to add it, write",
        "  specs/phi.yaml, at its end: operators: [decode, extend]",
        "and run  pav2gen build specs/phi.yaml",
    )
    both = ask(specs, "head_size=96", "gqa_ratio=1", "operator=extend").lines()
    assert "  specs/phi.yaml:6-7: head_size: [80, 96]" in both
    assert "  specs/phi.yaml, at its end: operators: [decode, extend]" in both


def test_an_operator_that_is_built_names_its_kernels() -> None:
    spec = parse((TWO_AXES + "operators: [decode, extend, cache]\n").encode(), "specs/large.yaml")
    assert ask([spec], "head_size=256", "block_size=32", "operator=extend").lines() == (
        "head_size=256 block_size=32: 1 extend kernel serves it",
        "  large  extend_hd256_g6_b32_f16",
        "for decode:",
        "  large  hd256_g6_b32_f16_p512",
        "for cache:",
        "  large  cache_hd256_b32_f16",
    )
    near = ask([spec], "head_size=128", "operator=cache")
    assert "nearest: large  cache_hd256_b16_f16, which has head_size=256" in near.lines()


def test_the_kernels_of_other_operators_go_with_those_of_decode() -> None:
    spec = parse((TWO_AXES + "operators: [decode, extend, cache]\n").encode(), "specs/large.yaml")
    assert ask([spec], "head_size=256", "partition_size=512", "block_size=16").lines()[1:] == (
        "  large  hd256_g6_b16_f16_p512",
        "for extend:",
        "  large  extend_hd256_g6_b16_f16",
        "for cache:",
        "  large  cache_hd256_b16_f16",
    )


def test_a_spec_without_decode_serves_no_decode() -> None:
    spec = parse((TWO_AXES + "operators: [extend]\n").encode(), "specs/large.yaml")
    assert ask([spec], "head_size=256", "block_size=16").lines() == (
        "head_size=256 block_size=16: no decode kernel serves it",
        "for extend:",
        "  large  extend_hd256_g6_b16_f16",
        "to add it, write",
        "  specs/large.yaml:14: operators: [decode, extend]",
        "and run  pav2gen build specs/large.yaml",
    )
    assert "  specs/large.yaml:14: operators: [decode, extend]" in ask([spec], "head_size=128").lines()


def test_free_axes_take_any_value(specs: list[Spec]) -> None:
    assert len(explain({}, specs).served) == 4
    assert [v.spec for v in ask(specs, "dtype=float16", "partition_size=512").served] == ["large", "large", "phi"]
    assert ask(specs, "head_size=80").lines()[0] == "head_size=80: 1 kernel serves it"


def test_values_may_be_typed_or_text(specs: list[Spec]) -> None:
    assert explain({"head_size": 80, "alibi": False}, specs) == explain({"head_size": "80", "alibi": "false"}, specs)
    assert read_value("kv_cache_dtype", "fp8") == "fp8_e4m3"


def test_an_axis_that_lacks_the_value(specs: list[Spec]) -> None:
    found = ask(specs, "head_size=256", "gqa_ratio=4")
    assert [(obstacle.spec.name, obstacle.lacking) for obstacle in found.obstacles] == [
        ("large", ("gqa_ratio",)),
        ("phi", ("head_size", "gqa_ratio")),
    ]
    assert found.nearest == variants(specs[0])[0]
    assert found.lines() == (
        "head_size=256 gqa_ratio=4: no kernel serves it",
        "  specs/large.yaml: gqa_ratio [6] lacks 4",
        "  specs/phi.yaml: head_size [80] lacks 256, gqa_ratio [1] lacks 4",
        "nearest: large  hd256_g6_b16_f16_p256, which has gqa_ratio=6",
        "to add it, write",
        "  specs/large.yaml:7: gqa_ratio: [4, 6]",
        "and run  pav2gen build specs/large.yaml",
    )


def test_an_exclusion_that_covers_the_key(specs: list[Spec]) -> None:
    found = ask(specs, "block_size=32", "partition_size=256")
    assert found.obstacles[0].exclusions == specs[0].exclude
    assert found.lines() == (
        "block_size=32 partition_size=256: no kernel serves it",
        "  specs/large.yaml: line 11 excludes it (rare)",
        "  specs/phi.yaml: block_size [16] lacks 32, partition_size [512] lacks 256",
        "nearest: large  hd256_g6_b16_f16_p256, which has block_size=16",
        "to add it, exclude less and run  pav2gen build specs/large.yaml",
    )


def test_only_the_exclusions_that_cover_the_key_are_named() -> None:
    more = "exclude:\n  - when: {block_size: 16, partition_size: 512}\n    because: large\n"
    spec = parse(TWO_AXES.replace("exclude:\n", more).encode(), "specs/large.yaml")
    (obstacle,) = ask([spec], "block_size=32", "partition_size=256").obstacles
    assert [exclusion.because for exclusion in obstacle.exclusions] == ["rare"]


def test_exclusions_that_cover_the_key_together(specs: list[Spec]) -> None:
    more = "exclude:\n  - when: {block_size: 32, partition_size: 512}\n    because: large\n"
    spec = parse(TWO_AXES.replace("exclude:\n", more).encode(), "specs/large.yaml")
    assert ask([spec], "block_size=32").lines()[1] == (
        "  specs/large.yaml: the exclusions on lines 11, 13 cover it together"
    )


def test_a_value_that_would_be_excluded_all_the_same_is_not_advised(specs: list[Spec]) -> None:
    """The first spec lacks only the head size, but with it the key is still excluded."""
    found = ask(specs, "head_size=128", "block_size=32", "partition_size=256")
    assert found.obstacles[0].lacking == ("head_size",)
    assert found.command == "pav2gen build specs/phi.yaml"


def test_a_rule_against_the_key_gives_its_reason_and_no_advice(specs: list[Spec]) -> None:
    found = ask(specs, "head_size=84", "kv_cache_dtype=fp8")
    assert [refusal.rule.id for refusal in found.refusals] == ["head-size", "whole-groups"]
    assert (found.edits, found.command) == ((), "")
    assert found.nearest and found.nearest.head_size == 80
    assert all(any(refusal.rule.reason in line for line in found.lines()) for refusal in found.refusals)


def test_a_rule_on_two_axes_needs_both(specs: list[Spec]) -> None:
    assert ask(specs, "head_size=72").refusals == ()
    assert [refusal.rule.id for refusal in ask(specs, "head_size=72", "kv_cache_dtype=fp8").refusals] == [
        "whole-groups"
    ]


def test_advice_where_the_section_is_not_written(specs: list[Spec]) -> None:
    (edit,) = ask(specs, "head_size=256", "alibi=true").edits
    assert (edit.where, edit.line) == ("specs/large.yaml, at its end", "features: {alibi: [false, true]}")
    roomy = parse(TWO_AXES.replace("max_variants: 8", "max_variants: 64").encode(), "specs/large.yaml")
    (edit,) = ask([roomy], "head_size=256", "alibi=true", "blocksparse=true").edits
    assert edit.line == "features: {alibi: [false, true], blocksparse: [false, true]}"
    (edit,) = ask(specs, "head_size=80", "alibi=true").edits
    assert (edit.where, edit.line, edit.under) == ("specs/phi.yaml:10", "alibi: [false, true]", "")
    braces = [parse(BRACES.encode(), "specs/braces.yaml")]
    first, second = ask(braces, "gqa_ratio=3", "alibi=true").edits
    assert (first.where, first.line) == (
        "specs/braces.yaml:5-6",
        "axes: {head_size: 256, gqa_ratio: [3, 6], partition_size: [256, 512]}",
    )
    assert (second.where, second.line) == (
        "specs/braces.yaml:7",
        "features: {sliding_window: null, alibi: [false, true]}",
    )
    found = ask(specs, "head_size=80", "dtype=float32")
    (edit,) = found.edits
    assert (edit.where, edit.line, edit.under) == ("specs/phi.yaml:5", "dtype: [float16, float32]", "axes")
    assert "  specs/phi.yaml:5: under axes, add  dtype: [float16, float32]" in found.lines()


def test_a_spec_that_is_full_is_not_advised(specs: list[Spec]) -> None:
    """Two more values would make 16 variants of large, over its limit of 8; the other spec is advised."""
    found = ask(specs, "head_size=200", "gqa_ratio=6", "dtype=float32")
    assert [obstacle.spec.name for obstacle in found.obstacles] == ["large", "phi"]
    assert found.command == "pav2gen build specs/phi.yaml"
    assert [edit.line for edit in found.edits] == [
        "head_size: [80, 200]",
        "gqa_ratio: [1, 6]",
        "dtype: [float16, float32]",
    ]


def test_no_spec_can_take_it_or_there_is_none(specs: list[Spec]) -> None:
    found = ask(specs[:1], "head_size=200", "gqa_ratio=5", "dtype=float32")
    assert (found.edits, found.command) == ((), "")
    assert (
        found.lines()[-1]
        == "no spec here can be extended to serve it; write one for its model: pav2gen init --from config.json"
    )
    assert explain({"head_size": 80}, []).lines() == ("head_size=80: no kernel serves it",)


OWN = PHI.replace("alibi: false", "modification: foo") + 'modifications:\n  foo: {mask: "q - k < 8"}\n'


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        (
            "fo",
            "did you mean foo? If not, define it under modifications in specs/own.yaml and add it to the features "
            "(docs/modifications.md)",
        ),
        (
            "unlike",
            "define it under modifications in specs/own.yaml and add it to the features (docs/modifications.md)",
        ),
        ("Foo", "did you mean foo? If not, write lower-case words, digits and single '_', at most 24 characters"),
    ],
)
def test_a_modification_that_no_spec_defines(asked: str, advice: str) -> None:
    own = [parse(OWN.encode(), "specs/own.yaml")]
    lines = ask(own, "head_size=80", f"modification={asked}").lines()
    assert lines[-1] == f"no spec here defines the modification '{asked}'; {advice}"
    assert "serves it" in ask(own, "head_size=80", "modification=foo").lines()[0]
    full = [parse(f"{OWN}limits: {{max_variants: 1}}\n".encode(), "specs/own.yaml")]
    assert ask(full, "head_size=200", "modification=foo").lines()[-1].startswith("no spec here can be extended")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["head=80"], "there is no axis 'head'; did you mean head_size?"),
        (["head_size"], "'head_size' is not axis=value; write it as head_size=128"),
        (["my specs/mine.yaml"], "'my specs/mine.yaml' is not axis=value; name a spec by --spec 'my specs/mine.yaml'"),
        (["head_size=many"], "head_size=many is not a whole number from 0 to 999999999"),
        (["head_size=٣"], "head_size=٣ is not a whole number from 0 to 999999999"),
        (["head_size=-8"], "head_size=-8 is not a whole number from 0 to 999999999"),
        (["alibi=yes"], "alibi=yes is not true or false"),
        (["operator=extent"], "there is no operator 'extent'; did you mean extend?"),
        (["head_size=80", "head_size=96"], "head_size is given twice; keep one"),
    ],
)
def test_a_query_that_asks_for_nothing(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as raised:
        read_query(words)
    assert str(raised.value) == message


def test_one_exclusion_that_covers_it_alone_is_named_alone() -> None:
    text = TWO_AXES.replace("limits:", "  - when: {partition_size: 512, block_size: 32}\n    because: alone\nlimits:")
    found = ask([parse(text.encode(), "specs/large.yaml")], "block_size=32", "partition_size=512")
    assert any("line 13 excludes it (alone)" in line for line in found.lines())
    both = text.replace("{partition_size: 512, block_size: 32}", "{partition_size: 512}")
    found = ask([parse(both.encode(), "specs/large.yaml")], "block_size=32", "partition_size=512")
    assert any("line 13 excludes it (alone)" in line for line in found.lines())
    found = ask([parse(both.encode(), "specs/large.yaml")], "block_size=32")
    assert any("lines 11, 13 cover it together" in line for line in found.lines())


def test_distance_counts_axes_before_it_measures_them(specs: list[Spec]) -> None:
    first = variants(specs[0])[0]
    assert distance({"head_size": 256}, first) == (0, 0)
    assert distance({"head_size": 128, "dtype": "float16"}, first) == (1, 0.5)
    assert distance({"gqa_ratio": 8, "dtype": "float32", "alibi": True}, first) == (3, 0.25)
    assert differing_axes({"gqa_ratio": 8, "dtype": "float16"}, first) == ("gqa_ratio",)


POINTS = st.fixed_dictionaries(
    {},
    optional={
        "head_size": st.sampled_from(HEAD_SIZES),
        "gqa_ratio": st.sampled_from(GQA_RATIOS),
        "block_size": st.sampled_from([8, 16, 32, 64, 128]),
        "dtype": st.sampled_from(list(DTYPE_TAGS)),
        "kv_cache_dtype": st.sampled_from(list(KV_TAGS)),
        "alibi": st.booleans(),
        "blocksparse": st.booleans(),
        "partition_size": st.sampled_from([64, 256, 512, 2048]),
    },
)


@given(POINTS, st.sampled_from([(TWO_AXES, PHI), (BRACES,)]), st.sampled_from(list(OPERATORS)))
@settings(max_examples=200)
def test_what_is_advised_adds_the_key(query: dict[str, object], given: tuple[str, ...], operator: str) -> None:
    """The edits are made in the text of the spec: it loads, and serves the key."""
    texts = {f"specs/{number}.yaml": text for number, text in enumerate(given)}
    specs = [parse(text.encode(), path) for path, text in texts.items()]
    query = {**query, "operator": operator}
    found = explain(query, specs)
    if operator == "decode":
        matching = [v for spec in specs for v in variants(spec) if not differing_axes(found.query, v)]
        assert list(found.served) == matching
    if not found.edits:
        return
    path = found.command.removeprefix("pav2gen build ")
    text = texts[path]
    for edit in sorted(found.edits, key=line_number, reverse=True):
        text = edited(text, edit)
    assert explain(query, [parse(text.encode(), path)]).served


def line_number(edit: AxisEdit) -> int:
    """The first line at which ``edit`` is to be made; beyond the last, at the end."""
    return int(edit.where.rpartition(":")[2].partition("-")[0]) if ":" in edit.where else 10**6


def edited(text: str, edit: AxisEdit) -> str:
    """``text`` with the line of ``edit`` over the lines that it names, or new where it says."""
    lines = text.splitlines()
    if line_number(edit) > len(lines):
        return "\n".join([*lines, edit.line, ""])
    old, key = line_number(edit) - 1, edit.line.partition(":")[0]
    if lines[old].strip().startswith(f"{key}:"):
        end = int(edit.where.rpartition(":")[2].rpartition("-")[2])
        indent = lines[old].partition(key)[0]
        lines[old:end] = [f"{indent}{edit.line}"]
    elif lines[old] in ("axes:", "features:"):
        lines.insert(old + 1, f"  {edit.line}")
    else:
        raise AssertionError(f"{edit.where} is no place for {edit.line}")
    return "\n".join(lines) + "\n"


def test_the_axes_of_a_query_are_all_axes() -> None:
    for axis in AXES:
        kind = AXES[axis].kind
        assert read_value(axis, "true" if kind is bool else "1") == (True if kind is bool else kind("1"))
        if AXES[axis].nullable:
            assert read_value(axis, "null") is None and read_value(axis, "None") is None


def test_long_answers_are_cut(specs: list[Spec]) -> None:
    text = TWO_AXES.replace("[6]", "[1, 2, 3, 4, 5, 6]").replace("max_variants: 8", "max_variants: 64")
    lines = explain({}, [parse(text.encode(), "specs/large.yaml")]).lines()
    assert len(lines[:-3]) == 10
    assert lines[-4] == "  and 10 more"
