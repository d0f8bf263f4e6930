"""Launches of CUDA extend kernels: tiles, workspaces and grids from host values; offsets that lead nowhere."""

import importlib
import random

import pytest
import torch

from pav2gen.bench.extending.extend_bench import cuda_launches
from pav2gen.commands.build import BuildOptions, build
from pav2gen.runtime.choice.dispatch_row import MIB, Row
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.extend.cases import ExtendCase, make
from pav2gen.runtime.extend.launch import launch, partitions_of, tiles_of

from .conftest import load, settle

SPEC = """
schema: 1
name: tiny
target: bi-v100
model: {num_heads: 64, num_kv_heads: 2, max_seq_len: 16384}
axes: {head_size: 64, gqa_ratio: 32, partition_size: 512, dtype: float32}
operators: [decode, extend]
backends: [cuda]
"""
KEY = Key(64, 3, 16, "float16", "auto", False, False)
ROW = Row("s", "x", KEY, 1024, "", "x.cu", 0, 0, 16, 1, operator="extend", tile_tokens=16)


def call_of(query_lens, contexts, **options):
    seq_lens = tuple(new + cached for new, cached in zip(query_lens, contexts))
    return make(ExtendCase(KEY, 1 << 30, seq_lens, query_lens=tuple(query_lens), **options))


@pytest.mark.parametrize(
    ("query_lens", "expected"),
    [
        ([5] * 7, (7, 1)),  # a tile for each sequence
        ([16, 16], (2, 1)),
        ([17, 40], (5, 0)),  # 57 tokens are 3 whole tiles; each sequence adds one. Three tiles each would be 6.
        ([100, 1, 1, 1, 1, 1], (12, 0)),  # seven tiles each would be 42
    ],
)
def test_the_fewest_tiles_that_host_values_allow(query_lens, expected):
    assert tiles_of(call_of(query_lens, [0] * len(query_lens)), 16) == expected


@pytest.mark.parametrize(
    ("window", "length", "expected"), [(None, 5000, 5), (100, 5000, 2), (1030, 5000, 3), (9, 20, 1)]
)
def test_partitions_are_those_of_a_tile(window, length, expected):
    # The tile has 16 tokens, so its windows reach over W + 15 keys. These end anywhere in a partition of 1024.
    call = call_of([20], [length - 20])._replace(sliding_window=window)
    assert partitions_of(call, ROW) == expected


def launches(call, row):
    """(first tile, tiles, floats of workspace) of each launch of a call."""
    asked, found = [], []

    def workspace(count, device, stream):
        asked.append(count)
        return torch.empty(count)

    def function(args, stream):
        found.append((args._obj.first_tile, args._obj.tiles))
        return 0

    launch(function, call, row, str, workspace)
    return found, asked


def test_a_launch_has_as_many_tiles_as_the_workspace_holds():
    call = call_of([16] * 30, [1100] * 30)
    # A tile has 16 tokens of 6 heads, in 2 partitions; each of these needs 66 floats: 50,688 bytes. A MiB holds 20.
    assert launches(call, ROW) == ([(0, 20), (20, 10)], [20 * 16 * 6 * 2 * 66])
    assert MIB // (4 * 16 * 6 * 2 * 66) == 20


def test_a_call_of_one_partition_needs_no_workspace():
    assert launches(call_of([16] * 30, [100] * 30), ROW) == ([(0, 30)], [])


def test_one_tile_is_launched_even_if_the_workspace_is_too_small():
    assert launches(call_of([16] * 3, [1100] * 3), ROW._replace(workspace_mib=0))[0] == [(0, 1), (1, 1), (2, 1)]


def test_a_grid_that_is_too_large_is_refused():
    call = call_of([1], [3])._replace(max_seq_len=65536 * 1024)
    with pytest.raises(RuntimeError, match="a CUDA grid can have at most 65535 partitions of 1024 tokens"):
        launches(call, ROW)


def test_an_error_of_a_launch_is_explained():
    with pytest.raises(RuntimeError, match="paged_attention_extend: error 7"):
        launch(lambda args, stream: 7, call_of([1], [3]), ROW, lambda code: f"error {code}")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A checked kernel with tiles of one token, so that most batches have packed tiles."""
    root = tmp_path_factory.mktemp("tiny")
    (root / "tiny.yaml").write_text(SPEC)
    build([root / "tiny.yaml"], BuildOptions(root / "package"))
    package = load(settle(root / "package"), "pav2_of_the_extend_launches")
    (row,) = (row for row in package.kernels.rows if row.operator == "extend")
    harness = importlib.import_module("pav2_of_the_extend_launches.runtime.extend.cuda_harness")
    return harness.CheckedExtend(package, row, "warp64", [row])


def test_several_launches_give_the_same_result(tiny, monkeypatch):
    case = tiny.case([3, 0, 2, 1], [1030, 4, 20, 0], seed=1, kv_heads=1, trailing_rows=1)
    whole = tiny.run(tiny_make(tiny, case))
    monkeypatch.setattr(tiny, "row", tiny.row._replace(workspace_mib=0))
    tiny.check(case)
    assert torch.equal(tiny.run(tiny_make(tiny, case)).out, whole.out)


@pytest.mark.parametrize(("contexts", "room"), [([30, 4], 16), ([1030, 4], 16), ([1030, 4], 0)])
def test_bench_counts_the_launches_that_a_kernel_makes(tiny, monkeypatch, contexts, room):
    monkeypatch.setattr(tiny, "row", tiny.row._replace(workspace_mib=room))
    call = tiny_make(tiny, tiny.case([3, 2], contexts, seed=1, kv_heads=1))
    tiny.run(call)
    assert cuda_launches(tiny.row, call) == tiny.report.totals.launches


def tiny_make(kernel, case):
    """The call of a case, made by the package's own runtime."""
    return importlib.import_module("pav2_of_the_extend_launches.runtime.extend.cases").make(case)


@pytest.mark.parametrize("seed", range(4))
def test_no_offset_leads_out_of_the_arrays(tiny, seed):
    """Any query_start_loc and seq_lens: nothing outside the arrays is touched. Two sequences may own one row."""
    random.seed(seed)
    call = tiny_make(tiny, tiny.case([2, 1, 3], [5, 0, 9], seed=seed, kv_heads=1, shared_blocks=4))
    starts = [random.choice([-(2**31), -5, 0, 1, 2, 3, 5, 6, 7, 2**31 - 1]) for _ in range(4)]
    lengths = [random.choice([-(2**31), -1, 0, 1, 8, 12, 13, 2**31 - 1]) for _ in range(3)]
    call = call._replace(
        query_start_loc=torch.tensor(starts, dtype=torch.int32), seq_lens=torch.tensor(lengths, dtype=torch.int32)
    )
    try:
        tiny.run(call)
    except AssertionError as error:
        assert {finding.kind for finding in error.findings} == {"race"}
