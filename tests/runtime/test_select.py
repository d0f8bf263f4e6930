"""The table: which row serves a call, by host values alone, and what is said when none does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.choice.miss import NoKernelError
from pav2gen.runtime.choice.select import Table
from pav2gen.runtime.choice.waves import cost

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
        NoKernelError,
        match=r"takes max_seq_len 33553921: a CUDA grid can have at most 65535 .* that are built have 512 tokens",
    ):
        table.choose(QWEN, "cuda", 1, 65535 * 512 + 1, 4)


@given(st.integers(1, 300), st.integers(1, 300_000), st.integers(1, 40))
def test_the_choice_is_the_cheapest_by_the_model(num_seqs, max_seq_len, kv_heads):
    rows = [row(partition=p) for p in (64, 256, 512, 2048)]
    best = min(cost(r, num_seqs, max_seq_len, kv_heads, "torch") for r in rows)
    chosen = Table(rows).choose(QWEN, "torch", num_seqs, max_seq_len, kv_heads)
    assert cost(chosen, num_seqs, max_seq_len, kv_heads, "torch") == best


def test_an_empty_table_says_so():
    with pytest.raises(NoKernelError, match=r"the package has none"):
        Table([]).serving(QWEN)
