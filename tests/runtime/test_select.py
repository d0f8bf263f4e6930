"""The table: which row serves a call, by host values alone, and what is said when none does."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.runtime.select import Key, NoKernelError, Row, Table, miss, nearest
from pav2gen.runtime.waves import cost

QWEN = Key(256, 6, 16, "float16", "auto", False, False)


def row(key=QWEN, partition=512, spec="a", **options):
    defaults = dict(
        torch="a.torch_kernels.x", cuda="", min_seq_len=8192, fixed_partition=0, multiprocessors=16, workspace_mib=64
    )
    return Row(f"{spec}_{partition}", spec, key, partition, **{**defaults, **options})


def test_the_key_decides():
    other = QWEN._replace(gqa_ratio=3)
    table = Table([row(), row(other, spec="b")])
    assert table.choose(QWEN, "torch", 1, 100, 4).spec == "a"
    assert table.choose(other, "torch", 1, 100, 4).spec == "b"


def test_the_first_spec_by_name_serves_a_key_of_two():
    table = Table([row(spec="b", partition=256), row(spec="a", partition=1024), row(spec="b", partition=512)])
    assert {r.spec for r in table.serving(QWEN)} == {"a"}
    assert len(table.rows) == 3


def test_a_partition_size_is_taken_at_its_word():
    table = Table([row(partition=256), row(partition=512)])
    for partition in (256, 512):
        assert table.choose(QWEN, "torch", 1, 100_000, 4, partition).partition_size == partition
    with pytest.raises(NoKernelError, match=r"with partition_size=1024; built: 256 .torch., 512 .torch."):
        table.choose(QWEN, "torch", 1, 100, 4, 1024)


def test_a_fixed_partition_is_kept_for_every_call():
    table = Table([row(partition=p, fixed_partition=512) for p in (256, 512, 1024)])
    chosen = {table.choose(QWEN, "torch", s, length, 4).partition_size for s in (1, 64) for length in (1, 100_000)}
    assert chosen == {512}
    assert table.choose(QWEN, "torch", 1, 1, 4, 256).partition_size == 256


def test_a_backend_that_is_not_built_is_a_miss():
    table = Table([row()])
    with pytest.raises(NoKernelError, match=r"no cuda kernel for head_size=256 .*; built: 512 .torch."):
        table.choose(QWEN, "cuda", 1, 100, 4)


def test_a_cuda_kernel_is_chosen_only_where_a_grid_holds_its_partitions():
    table = Table([row(partition=size, cuda="a.cu") for size in (256, 512)])
    assert table.choose(QWEN, "cuda", 1, 65535 * 512, 4).partition_size == 512
    assert table.choose(QWEN, "torch", 1, 65535 * 512 + 1, 4)
    with pytest.raises(
        NoKernelError, match=r"takes max_seq_len 33553921: a grid holds 65535 .* largest built is of 512"
    ):
        table.choose(QWEN, "cuda", 1, 65535 * 512 + 1, 4)


@given(st.integers(1, 300), st.integers(1, 300_000), st.integers(1, 40))
def test_the_choice_is_the_cheapest_by_the_model(num_seqs, max_seq_len, kv_heads):
    rows = [row(partition=p) for p in (64, 256, 512, 2048)]
    best = min(cost(r, num_seqs, max_seq_len, kv_heads, "torch") for r in rows)
    chosen = Table(rows).choose(QWEN, "torch", num_seqs, max_seq_len, kv_heads)
    assert cost(chosen, num_seqs, max_seq_len, kv_heads, "torch") == best


def test_a_miss_names_axis_nearest_line_and_command():
    table = Table([row(), row(Key(128, 4, 32, "float16", "auto", False, False), spec="llama")])
    with pytest.raises(NoKernelError) as raised:
        table.serving(QWEN._replace(gqa_ratio=7))
    text = str(raised.value)
    assert "no kernel for head_size=256 gqa_ratio=7 block_size=16" in text
    assert "gqa_ratio 7 (built: 6)" in text  # 4 is built, but for another head size
    assert "Nearest: head_size=256 gqa_ratio=6" in text
    assert "in specs/a.yaml write gqa_ratio: [6, 7], then: pav2gen build specs/a.yaml" in text


def test_the_line_of_a_miss_keeps_what_the_spec_has():
    keys = {QWEN._replace(gqa_ratio=ratio): "a" for ratio in (16, 6)} | {QWEN._replace(gqa_ratio=8, head_size=64): "b"}
    text = miss(QWEN._replace(gqa_ratio=11), keys, {})
    assert "gqa_ratio 11 (built: 6, 16)" in text and "gqa_ratio: [6, 11, 16]" in text


def test_the_line_of_a_miss_puts_features_where_a_spec_has_them():
    softcap = miss(QWEN._replace(gqa_ratio=11, softcap=50.0), {QWEN: "a"}, {})
    assert "in specs/a.yaml write gqa_ratio: [6, 11] and features: {softcap: [null, 50.0]}, then" in softcap
    own = miss(QWEN._replace(modification="mine"), {QWEN: "a"}, {})
    assert "write features: {modification: [null, mine]} (define mine under modifications), then" in own
    none = miss(QWEN, {QWEN._replace(modification="mine"): "a"}, {})
    assert "write features: {modification: [null, mine]}, then" in none


def test_a_miss_names_the_file_of_the_spec():
    text = miss(QWEN._replace(gqa_ratio=11), {QWEN: "a"}, {"a": "specs/first.yaml"})
    assert text.endswith("in specs/first.yaml write gqa_ratio: [6, 11], then: pav2gen build specs/first.yaml")


def test_a_combination_that_the_spec_leaves_out_is_no_line_to_write():
    others = (QWEN._replace(block_size=32), QWEN._replace(dtype="bfloat16"))
    key = QWEN._replace(block_size=32, dtype="bfloat16")
    text = miss(key, dict.fromkeys((QWEN, *others), "a"), {})
    assert "To add it" not in text
    assert text.endswith(
        f"specs/a.yaml has these values and leaves out their combination: pav2gen explain {key} says where"
    )


def test_what_another_shape_has_is_not_called_built():
    other = QWEN._replace(head_size=64, dtype="float32")
    assert "against it stands dtype float32 (built: float16)." in miss(
        QWEN._replace(dtype="float32"), {QWEN: "a", QWEN._replace(head_size=64): "a", other: "b"}, {}
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
    text = miss(QWEN._replace(**{axis: value}), {QWEN: "a"}, {})
    assert text.endswith(f"None can be generated: {limit}") and "write" not in text


def test_a_miss_names_features_as_yaml_does():
    text = miss(QWEN._replace(alibi=True), {QWEN: "a"}, {})
    assert "alibi true (built: false)" in text and "alibi: [false, true]" in text


def test_an_empty_table_says_so():
    with pytest.raises(NoKernelError, match=r"the package holds none"):
        Table([]).serving(QWEN)


def test_nearest_counts_axes_before_it_weighs_them():
    keys = [QWEN._replace(head_size=64), QWEN._replace(head_size=240, gqa_ratio=5), QWEN._replace(head_size=128)]
    assert nearest(QWEN, keys) == QWEN._replace(head_size=128)
    for order in itertools.permutations(keys):
        assert nearest(QWEN, order) == QWEN._replace(head_size=128)
