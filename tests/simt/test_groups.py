"""Cooperative groups: the block, and tiles of a warp."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

from pav2gen.runtime import simt

from .helpers import HERE, kinds, run

N = 128


@pytest.fixture(scope="module", params=[(64, True), (32, False)], ids=["warp64-checked", "warp32-fast"])
def program(request, cache) -> simt.Program:
    warp, checked = request.param
    return simt.build([HERE / "groups.cu"], warp_size=warp, checked=checked, cache_dir=cache)


def expected(tile: int) -> np.ndarray:
    value = [i * 7 % 31 for i in range(N)]
    rows = []
    for i in range(N):
        rank, first = i % tile, i // tile * tile
        mine = value[first : first + tile]
        votes = sum((v % 3 == 0) << k for k, v in enumerate(mine))
        pair = max(value[i // 2 * 2 : i // 2 * 2 + 2])
        rows.append(
            [rank, i // tile * 1000 + N // tile, rank // 2 * 1000 + tile // 2, mine[1], mine[max(rank - 1, 0)],
             mine[min(rank + 1, tile - 1)], mine[rank ^ 1], votes & 0xFFFF, (30 in mine) * 2 + (max(mine) < 30),
             sum(mine), pair, sum(value[i // 8 * 8 : i // 8 * 8 + 8]), sum(value), i]
        )  # fmt: skip
    return np.array(rows)


@pytest.mark.parametrize("tile", [4, 16, 32])
@pytest.mark.parametrize("order", ["ascending", "random"])
def test_tiles_and_the_block(program, tile, order):
    out = np.zeros((N, 16), np.int32)
    code, report = run(program, "run_groups", out, tile, lane_order=order)
    assert (code, kinds(report)) == (0, []), str(report)
    wanted = expected(tile)
    sums_at = {11: 8, 12: N}  # those that only the first of a group gets
    for column in range(14):
        rows = slice(None, None, sums_at.get(column, 1))
        assert (out[rows, column] == wanted[rows, column]).all(), column


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_nvcc_compiles_the_same_source(tmp_path):
    argv = ["nvcc", "-arch=sm_80", "-cubin", "-DPAV2_WARP_SIZE=32", "-o", str(tmp_path / "out.cubin"),
            str(HERE / "groups.cu")]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, encoding="utf-8", errors="replace")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["cg::this_grid().sync();", "cg::coalesced_threads();"])
def test_groups_that_are_not_supported_say_so(tmp_path, cache, call):
    source = tmp_path / "grid.cu"
    source.write_text(
        f"#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n__global__ void k() {{ {call} }}\n"
    )
    with pytest.raises(simt.CompileError, match=r"\(\) is not supported by this runtime \(docs/simt\.md, Limits\)"):
        simt.build([source], cache_dir=cache)
