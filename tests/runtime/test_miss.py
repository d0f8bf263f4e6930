"""What is said when no kernel has a key: the values that differ, and advice that the rules of a spec accept."""

import itertools
import random
import re

import pytest
import yaml

from pav2gen.errors import UserError
from pav2gen.family.spec import points
from pav2gen.reading.spec_file import parse
from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.choice.key import FEATURES, KEYS, Key, own_key
from pav2gen.runtime.choice.miss import NoKernelError, miss, nearest
from pav2gen.runtime.choice.select import Table

QWEN = Key(256, 6, 16, "float16", "auto", False, False)


def row(key=QWEN, spec="a", partition=512, operator="decode", fixed=0):
    symbol = f"{spec}_{operator}_{partition}"
    return Row(symbol, spec, key, partition, "a.torch_kernels.x", "", 8192, fixed, 16, 64, operator=operator)


def test_a_miss_names_axis_nearest_line_and_command():
    table = Table([row(), row(Key(128, 4, 32, "float16", "auto", False, False), "llama")])
    with pytest.raises(NoKernelError) as raised:
        table.serving(QWEN._replace(gqa_ratio=7))
    text = str(raised.value)
    assert "no kernel for head_size=256 gqa_ratio=7 block_size=16" in text
    assert "gqa_ratio 7 (built: 6)" in text  # 4 is built, but for another head size
    assert "Nearest: head_size=256 gqa_ratio=6" in text
    assert "in specs/a.yaml write gqa_ratio: [6, 7], then: pav2gen build specs/a.yaml" in text


def test_the_line_of_a_miss_keeps_what_the_spec_has():
    rows = [
        *(row(QWEN._replace(gqa_ratio=ratio)) for ratio in (16, 6)),
        row(QWEN._replace(gqa_ratio=8, head_size=64), "b"),
    ]
    text = miss(QWEN._replace(gqa_ratio=11), rows, {})
    assert "gqa_ratio 11 (built: 6, 16)" in text and "gqa_ratio: [6, 11, 16]" in text


def test_the_line_of_a_miss_puts_features_where_a_spec_has_them():
    softcap = miss(QWEN._replace(gqa_ratio=11, softcap=50.0), [row()], {})
    assert "in specs/a.yaml write gqa_ratio: [6, 11] and features: {softcap: [null, 50.0]}, then" in softcap
    own = miss(QWEN._replace(modification="mine"), [row()], {})
    assert "write features: {modification: [null, mine]} (define mine under modifications), then" in own
    none = miss(QWEN, [row(QWEN._replace(modification="mine"))], {})
    assert "write features: {modification: [null, mine]}, then" in none


def test_a_miss_suggests_the_modification_that_was_meant():
    rows = [row(QWEN._replace(modification="near_and_first")), row(QWEN._replace(modification="far"), "b")]
    question = " Did you mean the modification near_and_first? To add it: "
    assert question in miss(QWEN._replace(modification="near_and_fist"), rows, {})
    unlike = (miss(QWEN._replace(modification="unlike"), rows, {}), miss(QWEN._replace(head_size=64), rows, {}))
    elsewhere = miss(QWEN._replace(modification="far", head_size=64), rows, {})
    assert not any("Did you mean" in text for text in (*unlike, elsewhere))


def test_a_miss_names_the_file_of_the_spec():
    text = miss(QWEN._replace(gqa_ratio=11), [row()], {"a": "specs/first.yaml"})
    assert text.endswith("in specs/first.yaml write gqa_ratio: [6, 11], then: pav2gen build specs/first.yaml")


def test_a_combination_that_the_spec_leaves_out_is_no_line_to_write():
    others = (QWEN._replace(block_size=32), QWEN._replace(dtype="bfloat16"))
    key = QWEN._replace(block_size=32, dtype="bfloat16")
    text = miss(key, [row(each) for each in (QWEN, *others)], {})
    assert "To add it" not in text
    assert text.endswith(
        f"specs/a.yaml has these values and leaves out their combination: pav2gen explain {key} says where"
    )


def test_what_another_shape_has_is_not_called_built():
    other = QWEN._replace(head_size=64, dtype="float32")
    assert "the nearest kernel differs in dtype float32 (built: float16)." in miss(
        QWEN._replace(dtype="float32"), [row(), row(QWEN._replace(head_size=64)), row(other, "b")], {}
    )


@pytest.mark.parametrize(
    "axis, value, limit",
    [
        ("head_size", 100, "head_size is a multiple of 8 from 32 to 256, or 512"),
        ("gqa_ratio", 0, "gqa_ratio is from 1 to 128"),
        ("block_size", 24, "block_size is 8, 16, 32, 64 or 128"),
        ("dtype", "float64", "dtype is float16, bfloat16 or float32"),
    ],
)
def test_no_line_is_advised_that_a_build_would_refuse(axis, value, limit):
    text = miss(QWEN._replace(**{axis: value}), [row()], {})
    assert text.endswith(f"None can be generated: {limit}") and "write" not in text


def test_a_miss_names_features_as_yaml_does():
    text = miss(QWEN._replace(alibi=True), [row()], {})
    assert "alibi true (built: false)" in text and "alibi: [false, true]" in text


def test_nearest_counts_axes_before_it_weighs_them():
    keys = [QWEN._replace(head_size=64), QWEN._replace(head_size=240, gqa_ratio=5), QWEN._replace(head_size=128)]
    assert nearest(QWEN, keys) == QWEN._replace(head_size=128)
    for order in itertools.permutations(keys):
        assert nearest(QWEN, order) == QWEN._replace(head_size=128)


def test_what_an_operator_never_has_is_no_line_to_write():
    sparse = QWEN._replace(blocksparse=True)
    for rows in ([row()], [row(), row(operator="extend")], [row(sparse)], []):
        text = miss(sparse, rows, {}, "extend")
        assert text.startswith("no extend kernel for")
        assert text.endswith("None can be generated: blocksparse is false in extend kernels")


def test_a_spec_with_block_sparse_kernels_gets_no_extend():
    """Adding extend to its operators would make block-sparse extend kernels too; another spec that has the key may."""
    rows = [row(spec="both"), row(QWEN._replace(blocksparse=True), "both")]
    assert miss(QWEN, rows, {}, "extend").endswith(
        "specs/both.yaml builds this key for decode, and also blocksparse kernels, which extend lacks. To add it: "
        "write another spec, with axes: {head_size: 256, gqa_ratio: 6, block_size: 16, dtype: float16, "
        "kv_cache_dtype: auto}, operators: [extend], then: pav2gen build specs/NAME.yaml"
    )
    assert miss(QWEN, [*rows, row(spec="plain")], {}, "extend").endswith(
        "specs/plain.yaml builds this key for decode; add extend to its operators, then: pav2gen build specs/plain.yaml"
    )


def test_a_block_sparse_key_is_not_added_to_a_spec_with_extend():
    rows = [row(), row(operator="extend")]
    text = miss(QWEN._replace(blocksparse=True), rows, {})
    assert "To add it: write another spec" in text
    assert "features: {blocksparse: true}, operators: [decode], then" in text


def test_values_that_no_kernel_has_together_are_excluded():
    caches = [row(QWEN._replace(kv_cache_dtype=cache)) for cache in ("auto", "fp8_e4m3", "int8")]
    assert (
        "write head_size: [72, 256] and under exclude, add "
        "{when: {head_size: 72, kv_cache_dtype: fp8_e4m3}, because: no kernel can have both}, "
        "{when: {head_size: 72, kv_cache_dtype: int8}, because: no kernel can have both}, then: pav2gen"
    ) in miss(QWEN._replace(head_size=72), caches, {})
    pages = miss(QWEN._replace(block_size=128), [row(partition=64), row(partition=256)], {})
    assert "add {when: {partition_size: 64, block_size: 128}, because: no kernel can have both}, then" in pages
    for rows in ([row(partition=64)], [row(partition=64, fixed=64), row(partition=256, fixed=64)]):
        assert "To add it: write another spec" in miss(QWEN._replace(block_size=128), rows, {})


@pytest.mark.parametrize(
    "axis, value, limit",
    [
        ("softcap", 0.0, "softcap is a number from 0.001 to 1000000, or null"),
        ("softcap", 2e6, "softcap is a number from 0.001 to 1000000, or null"),
        ("sliding_window", 0, "sliding_window is from 1 to 1073741824, or null"),
        (
            "modification",
            "Mine!",
            "modification is a name of lower-case words, digits and single '_', at most 24 characters",
        ),
    ],
)
def test_a_feature_that_a_build_would_refuse_is_not_advised(axis, value, limit):
    assert miss(QWEN._replace(**{axis: value}), [row()], {}).endswith(f"None can be generated: {limit}")


#: Values of each axis that kernels can have, and values that they cannot.
POSSIBLE = {
    "head_size": [64, 72, 128, 512],
    "gqa_ratio": [3, 6, 128],
    "block_size": [8, 16, 128],
    "dtype": ["float16", "float32"],
    "kv_cache_dtype": ["auto", "fp8_e4m3", "int8"],
    "alibi": [False, True],
    "blocksparse": [False, True],
    "softcap": [None, 30.0],
    "sliding_window": [None, 1000],
    "sinks": [False, True],
    "modification": [None, "mine"],
}
IMPOSSIBLE = {
    "head_size": [100],
    "gqa_ratio": [0],
    "block_size": [24],
    "kv_cache_dtype": ["int4"],
    "softcap": [0.0, 1e9],
    "sliding_window": [0, 1 << 31],
    "modification": ["Not A Name"],
}
OPERATORS = (["decode"], ["extend"], ["decode", "extend"], ["decode", "extend", "cache"])


def some(draw, values):
    """One or two of ``values``."""
    return draw.sample(values, draw.randint(1, min(2, len(values))))


def random_document(draw):
    """A spec that keeps all rules. It excludes pairs that no kernel can have, but no value with all others."""
    wide = ("head_size", "block_size", "kv_cache_dtype", *draw.sample(FEATURES, 2))
    values = {axis: some(draw, known) if axis in wide else [draw.choice(known)] for axis, known in POSSIBLE.items()}
    operators = draw.choice(OPERATORS)
    if "extend" in operators:
        values["blocksparse"] = [False]
    features = {axis: values.pop(axis) for axis in FEATURES}
    partitions = some(draw, [64, 128, 512]) if "decode" in operators else [512]
    values["partition_size"] = partitions
    if values["block_size"] == [128] or partitions == [64]:
        values["block_size"] = [16]
    if values["head_size"] == [72] or "auto" not in values["kv_cache_dtype"]:
        values["kv_cache_dtype"] = ["auto"]
    made = document(values, features, operators, draw.choice([None, max(partitions)]))
    pairs = {"partition_size": ("block_size", 64, [128]), "head_size": ("kv_cache_dtype", 72, ["fp8_e4m3", "int8"])}
    for axis, (other, value, clashing) in pairs.items():
        both = [each for each in values[other] if each in clashing]
        if value in values[axis] and both:
            made["exclude"].append({"when": {axis: value, other: both}, "because": "no kernel can have both"})
    return made


def random_key(draw, made):
    """A key of values of a spec, with up to three values of other keys."""
    key = {axis: draw.choice(values) for axis, values in (made["axes"] | made["features"]).items()}
    del key["partition_size"]
    for axis in draw.sample(list(POSSIBLE), draw.randint(0, 3)):
        key[axis] = draw.choice(POSSIBLE[axis] * 2 + IMPOSSIBLE.get(axis, []))
    return Key(**key)


def document(axes, features, operators, partition=None):
    """A spec as a YAML document. It defines each modification that its features name."""
    ratio = max(1, axes["gqa_ratio"][0])
    return {
        "schema": 1,
        "name": "a",
        "target": "bi-v100",
        "model": {"num_heads": 2 * ratio, "num_kv_heads": 2, "max_seq_len": 4096},
        "axes": axes,
        "features": features,
        "modifications": {name: {"mask": "k < 4"} for name in features.get("modification", []) if name},
        "operators": operators,
        "exclude": [],
        "dispatch": {"partition": partition} if partition else {},
        "limits": {"max_variants": 4096, "workspace_mib": 4096},
    }


def loaded(made):
    """The spec of a document, without the sections that are empty."""
    return parse(yaml.safe_dump({name: part for name, part in made.items() if part}).encode(), "specs/a.yaml")


def rows_of(spec):
    """The rows of a spec, without the figures of its plans."""
    fixed = {"decode": spec.dispatch.partition or 0}
    return [
        row(point.key, "a", point.axes.get("partition_size", 0), point.operator, fixed.get(point.operator, 0))
        for point in points(spec)
    ]


def alone(key, operator):
    """A spec for a key alone."""
    values = {"gqa_ratio": [6]} | {axis: [value] for axis, value in key._asdict().items()}
    features = {axis: values.pop(axis) for axis in FEATURES if axis in values}
    return document(values, features, [operator])


def edited(made, advice):
    """The document with the lines that a miss advises to write."""
    lines, _, exclude = advice.partition(" and under exclude, add ")
    axes, _, features = lines.partition("features: ")
    features = yaml.safe_load(features.partition(" (define")[0] or "{}")
    added = yaml.safe_load(f"{{{axes.removesuffix(' and ')}}}")
    result = document(made["axes"] | added, made["features"] | features, made["operators"])
    kept = {name: made[name] for name in ("model", "dispatch")}
    return {**result, **kept, "exclude": made["exclude"] + yaml.safe_load(f"[{exclude}]")}


OTHER_SPEC = re.compile(
    r"write another spec, with axes: ({.*?}), (?:features: ({.*?}).*?, )?operators: (\[\w+\]), then: "
)


def followed(made, text):
    """The document after the advice of a miss; None if the miss gives no line to write."""
    if found := re.search(r"add (\w+) to its operators, then", text):
        return {**made, "operators": [*made["operators"], found[1]]}
    if found := OTHER_SPEC.search(text):
        axes, features, operators = (yaml.safe_load(part or "{}") for part in found.groups())
        lists = [{axis: [value] for axis, value in part.items()} for part in (axes, features)]
        return document({"gqa_ratio": [6]} | lists[0], lists[1], operators)
    found = re.search(r"To add it: in specs/a.yaml write (.*), then: pav2gen build specs/a.yaml(.*)", text)
    return edited(made, found[1]) if found and not found[2] else None


@pytest.mark.parametrize("seed", range(40))
def test_what_is_advised_is_accepted_and_adds_the_key(seed):
    """The advice is followed in the text of the spec. Where there is none, the rules refuse a spec of the key alone."""
    draw = random.Random(seed)
    made = random_document(draw)
    rows = rows_of(loaded(made))
    built = {(each.key, each.operator) for each in rows}
    for operator in list(KEYS) * 3:
        key = own_key(random_key(draw, made), operator)
        if (key, operator) not in built:
            check_advice(key, operator, made, miss(key, rows, {}, operator))


def check_advice(key, operator, made, text):
    """Follow the advice of a miss."""
    if "None can be generated" in text:
        with pytest.raises(UserError, match=r"\(rule (?!ranks-served)|must be lower-case"):
            loaded(alone(key, operator))
    elif advised := followed(made, text):
        assert key in {point.key for point in points(loaded(advised)) if point.operator == operator}
    else:
        assert re.search(r"leaves out their combination: pav2gen explain|the package has none; write operators", text)
