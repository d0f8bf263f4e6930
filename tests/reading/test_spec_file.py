"""A spec means what it says: its values, its defaults, the points of its product, and where each thing stands."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pav2gen.errors import UserError
from pav2gen.family import target
from pav2gen.family.axes import AXES
from pav2gen.plan.cuda_plan import CHOICES
from pav2gen.reading.spec_file import (
    DEFAULTS,
    KEYS,
    Dispatch,
    Exclusion,
    Limits,
    Model,
    RankShape,
    load,
    parse,
    variants,
)
from pav2gen.wording import flow_list, flow_map

SPECS = Path(__file__).parents[2] / "specs"

SMALL = """\
schema: 1
name: small
target: bi-v100
model: {num_heads: 32, num_kv_heads: 8, max_seq_len: 4096}
axes: {head_size: 128, gqa_ratio: 4}
"""

FULL = """\
# A comment, and an empty line.

schema: 1
name: full_2
about: 天垓100, "quoted"
target: {base: bi-v100, multiprocessors: 32, bandwidth_gbps: 600}
model:
  num_heads: 24
  num_kv_heads: 4
  max_seq_len: 262144
  tensor_parallel: [1, 2, 8]
axes:
  head_size: 256
  gqa_ratio: [3, 6]
  partition_size:
    - 256
    - 512
  block_size: [16]
  dtype: [float16, 'bfloat16']
  kv_cache_dtype: [auto, fp8]
features: {alibi: [false, true], blocksparse: true, softcap: null, sliding_window: null, sinks: false}
exclude:
  - when: {kv_cache_dtype: fp8, dtype: bfloat16}
    because: >
      a reason of
      two lines
  - {when: {alibi: true, gqa_ratio: [3]}, because: another}
backends: [torch, cuda]
dispatch: {min_seq_len: 0, partition: 512, host_lengths: never}
limits: {max_variants: 32, workspace_mib: 128}
""".replace('"quoted"', "'quoted'")


def test_every_value_of_a_full_spec() -> None:
    spec = parse(FULL.encode(), "some/where/full.yaml")
    assert (spec.name, spec.about) == ("full_2", "天垓100, 'quoted'")
    assert spec.target == target.find("bi-v100").with_overrides({"multiprocessors": 32, "bandwidth_gbps": 600.0})
    assert spec.model == Model(24, 4, 262144, (1, 2, 8))
    assert spec.axes == {
        "head_size": (256,),
        "gqa_ratio": (3, 6),
        "block_size": (16,),
        "dtype": ("float16", "bfloat16"),
        "kv_cache_dtype": ("auto", "fp8_e4m3"),
        "alibi": (False, True),
        "blocksparse": (True,),
        "softcap": (None,),
        "sliding_window": (None,),
        "sinks": (False,),
        "modification": (None,),
        "partition_size": (256, 512),
    }
    assert spec.exclude == (
        Exclusion({"kv_cache_dtype": ("fp8_e4m3",), "dtype": ("bfloat16",)}, "a reason of two lines", 23),
        Exclusion({"alibi": (True,), "gqa_ratio": (3,)}, "another", 27),
    )
    assert spec.backends == ("torch", "cuda")
    assert spec.dispatch == Dispatch(0, 512, "never")
    assert spec.limits == Limits(32, 128)
    assert (spec.file_name, spec.canonical_path) == ("full.yaml", "specs/full.yaml")
    assert spec.sha256 == hashlib.sha256(FULL.encode()).hexdigest()


def test_defaults() -> None:
    spec = parse(SMALL.encode(), "small.yaml")
    assert spec.about == "small"
    assert spec.target == target.find("bi-v100")
    assert spec.model.tensor_parallel == (1,)
    assert {axis: spec.axes[axis] for axis in AXES} == {
        "head_size": (128,),
        "gqa_ratio": (4,),
        "block_size": (16,),
        "dtype": ("float16",),
        "kv_cache_dtype": ("auto",),
        "alibi": (False,),
        "blocksparse": (False,),
        "softcap": (None,),
        "sliding_window": (None,),
        "sinks": (False,),
        "modification": (None,),
        "partition_size": (512,),
    }
    assert (spec.exclude, spec.backends) == ((), ("torch",))
    assert spec.dispatch == Dispatch(8192, None, "auto")
    assert spec.limits == Limits(256, 64)


def test_every_optional_key_has_a_default() -> None:
    optional = {f"{section}.{key}".lstrip(".") for section, (_, keys) in KEYS.items() for key in keys}
    sections = {section for section in KEYS if section}
    planned = {f"cuda.{name}" for name in CHOICES}
    assert optional - sections - planned - {"about"} == set(DEFAULTS)


def test_the_layout_of_cuda_kernels_is_what_a_spec_sets_of_it() -> None:
    assert parse(SMALL.encode(), "a.yaml").cuda == parse(f"{SMALL}cuda: {{}}\n".encode(), "a.yaml").cuda == {}
    text = f"{SMALL}backends: [torch, cuda]\ncuda: {{tokens: 2, threads: 64}}\n"
    assert parse(text.encode(), "a.yaml").cuda == {"tokens": 2, "threads": 64}


def test_a_scalar_stands_for_a_list_of_one() -> None:
    lists = SMALL.replace("head_size: 128, gqa_ratio: 4", "head_size: [128], gqa_ratio: [4], dtype: [float16]")
    lists = lists.replace("4096}", "4096, tensor_parallel: [1]}") + "backends: [torch]\nfeatures: {alibi: [false]}\n"
    scalars = SMALL.replace("gqa_ratio: 4", "gqa_ratio: 4, dtype: float16")
    scalars = scalars.replace("4096}", "4096, tensor_parallel: 1}") + "backends: torch\nfeatures: {alibi: false}\n"
    one, other = parse(lists.encode(), "a.yaml"), parse(scalars.encode(), "a.yaml")
    assert (one.axes, one.model, one.backends) == (other.axes, other.model, other.backends)


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_line_endings_and_trailing_space_do_not_matter(ending: str) -> None:
    spec = parse(FULL.replace("\n", ending).encode(), "full.yaml")
    assert spec.exclude[1].line == 27
    assert spec.axes == parse(FULL.encode(), "full.yaml").axes


def test_no_exclusions_may_be_written_out() -> None:
    assert parse((SMALL + "exclude: []\n").encode(), "small.yaml").exclude == ()


@pytest.mark.parametrize("text", ["3.1", "no", "2024-01-01", "null", "~", "0x1f"])
def test_quotes_make_a_text_of_anything(text: str) -> None:
    assert parse(f"{SMALL}about: '{text}'\n".encode(), "small.yaml").about == text


def test_where_things_stand() -> None:
    spec = parse(FULL.encode(), "dir/full.yaml")
    lines = {
        "": 3,
        "name": 4,
        "model.tensor_parallel[2]": 11,
        "axes": 12,
        "axes.partition_size": 15,
        "axes.partition_size[0]": 16,
        "axes.partition_size[1]": 17,
        "features.alibi[1]": 21,
        "exclude[0].when.dtype": 23,
        "exclude[1].because": 27,
        "limits.workspace_mib": 30,
    }
    assert {path: spec.where(path) for path in lines} == {path: f"dir/full.yaml:{line}" for path, line in lines.items()}
    assert spec.where("axes.nowhere", "axes") == "dir/full.yaml:12"
    assert spec.where("nowhere") == "full.yaml"


def test_places_do_not_make_specs_differ() -> None:
    assert parse(FULL.encode(), "a/full.yaml") == parse(FULL.encode(), "b/full.yaml")


def test_load_reads_a_path_or_a_string(folder: Path) -> None:
    (folder / "small.yaml").write_text(SMALL)
    assert load("small.yaml") == load(folder / "small.yaml")
    assert load(folder / "small.yaml").where("name") == f"{folder / 'small.yaml'}:2"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "shape"),
    [
        (24, 4, 1, RankShape(1, 24, 4)),
        (24, 4, 4, RankShape(4, 6, 1)),
        (24, 4, 8, RankShape(8, 3, 1)),  # the KV heads are replicated, and the ratio falls from 6 to 3
        (16, 2, 4, RankShape(4, 4, 1)),
        (28, 4, 4, RankShape(4, 7, 1)),
        (64, 8, 16, RankShape(16, 4, 1)),
        (32, 32, 8, RankShape(8, 4, 4)),
    ],
)
def test_ranks_as_vllm_makes_them(heads: int, kv_heads: int, size: int, shape: RankShape) -> None:
    model = Model(heads, kv_heads, 4096, (size,))
    assert model.ranks() == (shape,)
    assert model.shards_over(size)


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(14, 2, 4), (24, 4, 6), (28, 4, 7), (40, 8, 5), (12, 4, 6)])
def test_ranks_that_vllm_refuses(heads: int, kv_heads: int, size: int) -> None:
    assert not Model(heads, kv_heads, 4096, (size,)).shards_over(size)


def test_variants_are_in_the_order_of_the_axes_less_what_is_excluded() -> None:
    spec = parse(FULL.encode(), "full.yaml")
    expected = [
        (256, ratio, 16, dtype, cache, alibi, True, None, None, False, None, partition)
        for ratio in (3, 6)
        for dtype in ("float16", "bfloat16")
        for cache in ("auto", "fp8_e4m3")
        for alibi in (False, True)
        for partition in (256, 512)
        if not (cache == "fp8_e4m3" and dtype == "bfloat16") and not (alibi and ratio == 3)
    ]
    assert [tuple(getattr(variant, axis) for axis in AXES) for variant in variants(spec)] == expected
    assert {variant.spec for variant in variants(spec)} == {"full_2"}


VALUES: dict[str, list[object]] = {
    "head_size": [64, 128, 256],
    "gqa_ratio": [4, 1, 6],
    "block_size": [8, 16, 32],
    "dtype": ["float16", "bfloat16", "float32"],
    "kv_cache_dtype": ["auto", "fp8_e4m3", "fp8_e5m2"],
    "alibi": [False, True],
    "blocksparse": [True, False],
    "softcap": [None],
    "sliding_window": [None],
    "sinks": [False],
    "modification": [None],
    "partition_size": [64, 512, 1024],
}
AXIS_LISTS = st.fixed_dictionaries(
    {
        axis: st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)
        for axis, values in VALUES.items()
        if axis != "gqa_ratio"
    }
    | {"gqa_ratio": st.sampled_from([[4], [4, 1], [6, 4]])}
)


@st.composite
def families(draw: st.DrawFn) -> tuple[dict[str, list[object]], list[dict[str, list[object]]]]:
    """The lists of all axes, and exclusions of some of their values."""
    axes = draw(AXIS_LISTS)
    part = st.dictionaries(st.sampled_from(list(AXES)), st.integers(1, 2), min_size=1, max_size=3)
    excluded = draw(st.lists(part, max_size=3))
    return axes, [{axis: axes[axis][:count] for axis, count in counts.items()} for counts in excluded]


def written(axes: dict[str, list[object]], excluded: list[dict[str, list[object]]]) -> str:
    """The family as YAML, with the exclusions in the form of a flow or of a block."""

    def lines() -> Iterator[str]:
        yield from SMALL.splitlines()[:4]
        for section in ("axes", "features"):
            yield f"{section}:"
            yield from (f"  {name}: {flow_list(axes[name])}" for name, axis in AXES.items() if axis.section == section)
        yield "exclude:" if excluded else "exclude: []"
        for number, when in enumerate(excluded):
            if number % 2:
                flow = flow_map((axis, flow_list(values)) for axis, values in when.items())
                yield f"  - {{when: {flow}, because: rare}}"
            else:
                yield "  - when:"
                yield from (f"      {axis}: {flow_list(values)}" for axis, values in when.items())
                yield "    because: rare"

    return "\n".join(lines()) + "\n"


@given(families())
@settings(max_examples=200)
def test_the_points_are_those_of_an_independent_count(
    family: tuple[dict[str, list[object]], list[dict[str, list[object]]]],
) -> None:
    axes, excluded = family
    points = [dict(zip(AXES, point, strict=True)) for point in itertools.product(*(axes[axis] for axis in AXES))]
    for number, when in enumerate(excluded):
        left = [point for point in points if not all(point[axis] in values for axis, values in when.items())]
        if not left or len(left) == len(points):
            with pytest.raises(UserError, match="exclusion"):
                parse(written(axes, excluded[: number + 1]).encode(), "small.yaml")
            return
        points = left
    text = written(axes, excluded).encode()
    if not any(point["gqa_ratio"] == 4 for point in points):
        with pytest.raises(UserError, match="rule ranks-served"):
            parse(text, "small.yaml")
        return
    made = [{axis: getattr(variant, axis) for axis in AXES} for variant in variants(parse(text, "small.yaml"))]
    assert made == points


# The committed specs.

COMMITTED = sorted(SPECS.glob("*.yaml"))

#: name -> (head size, ratio of each tensor-parallel size): the models' real shapes.
SHAPES = {
    "baichuan_13b": (128, {1: 1, 2: 1, 4: 1, 8: 1}),
    "gemma2_9b": (256, {1: 2, 2: 2, 4: 2, 8: 2}),
    "gemma3_12b": (256, {1: 2, 2: 2, 4: 2, 8: 2}),
    "gpt_oss_20b": (64, {1: 8, 2: 8, 4: 8, 8: 8}),
    "llama2_7b": (128, {1: 1, 2: 1, 4: 1, 8: 1}),
    "llama3_70b": (128, {4: 8, 8: 8}),
    "llama3_8b": (128, {1: 4, 2: 4, 4: 4, 8: 4}),
    "mistral_7b_v01": (128, {1: 4, 2: 4, 4: 4, 8: 4}),
    "own_attention": (128, {1: 4}),
    "phi2": (80, {1: 1, 2: 1, 4: 1}),
    "qwen25_05b": (64, {1: 7, 2: 7}),
    "qwen25_7b": (128, {1: 7, 2: 7, 4: 7}),
    "qwen36": (256, {1: 6, 2: 6, 4: 6, 8: 3}),
    "qwen36_35b_a3b": (256, {1: 8, 2: 8, 4: 4}),
    "qwen3_14b": (128, {1: 5, 2: 5, 4: 5, 8: 5}),
    "qwen3_235b": (128, {1: 16, 2: 16, 4: 16}),
}


def test_the_committed_specs_have_the_shapes_of_their_models() -> None:
    shapes = {}
    for path in COMMITTED:
        spec = load(path)
        assert path.stem == spec.name
        (head_size,) = spec.axes["head_size"]
        shapes[spec.name] = (head_size, {rank.tensor_parallel: rank.gqa_ratio for rank in spec.model.ranks()})
    assert shapes == SHAPES


def test_the_committed_specs_are_small_and_serve_their_ranks_by_default() -> None:
    counts = {}
    for path in COMMITTED:
        spec = load(path)
        family = variants(spec)
        counts[spec.name] = len(family)
        assert (spec.target.name, spec.backends) == ("bi-v100", ("torch", "cuda"))
        plain = {
            v.gqa_ratio for v in family if v.block_size == 16 and v.dtype == "float16" and v.kv_cache_dtype == "auto"
        }
        assert plain == {rank.gqa_ratio for rank in spec.model.ranks()}
    assert all(1 <= count <= 14 for count in counts.values()), counts
    assert sum(counts.values()) <= 80


def test_the_committed_specs_cover_every_branch_of_the_templates() -> None:
    family = [variant for path in COMMITTED for variant in variants(load(path))]
    assert {variant.dtype for variant in family} == {"float16", "bfloat16", "float32"}
    assert {variant.kv_cache_dtype for variant in family} == {"auto", "fp8_e4m3", "fp8_e5m2", "int8"}
    assert {variant.alibi for variant in family} == {variant.blocksparse for variant in family} == {False, True}
    assert {variant.softcap for variant in family} == {None, 50.0}
    assert {variant.sliding_window for variant in family} == {None, 128, 1024, 4096}
    assert {variant.sinks for variant in family} == {False, True}
    assert {variant.modification for variant in family} == {None, "near_and_first", "relative_bias"}
    assert {variant.block_size for variant in family} == {16, 32}
    assert {variant.partition_size for variant in family} == {256, 512, 1024}
