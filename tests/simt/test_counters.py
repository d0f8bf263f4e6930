"""Counters against a model that works on the addresses themselves."""

from __future__ import annotations

import numpy as np
import pytest

from pav2gen.runtime import simt

from .helpers import HERE, call, kinds, run

ORDERS = ["ascending", "descending", "random"]


def sectors(addresses: list[int], width: int, size: int) -> int:
    """Sectors of `size` bytes that one access of a warp touches."""
    return len({a // size for first in addresses for a in (first, first + width - 1)})


def passes(addresses: list[int], width: int) -> tuple[int, int]:
    """Ideal and real passes through 32 banks of 4 bytes: lanes are served for 128 bytes at a time."""
    together = 128 // max(4, width)
    ideal = real = 0
    for start in range(0, len(addresses), together):
        words = {w for a in addresses[start : start + together] for w in range(a // 4, (a + width - 1) // 4 + 1)}
        banks = np.bincount([w % 32 for w in words], minlength=32)
        ideal += 1
        real += int(banks.max())
    return ideal, real


def in_warps(addresses: list[list[int]], warp: int) -> list[list[int]]:
    """Addresses by block and thread -> by warp."""
    return [block[i : i + warp] for block in addresses for i in range(0, len(block), warp)]


def expect(traffic: simt.Traffic, accesses: list[list[int]], width: int) -> None:
    lanes = sum(map(len, accesses))
    assert (traffic.accesses, traffic.lanes, traffic.bytes) == (len(accesses), lanes, lanes * width)
    for size, counted in ((32, traffic.sectors_32), (64, traffic.sectors_64), (128, traffic.sectors_128)):
        assert counted == sum(sectors(a, width, size) for a in accesses), size


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    "first, stride, active",
    [(0, 1, 160), (3, 1, 160), (0, 2, 160), (0, 5, 160), (1, 64, 160), (0, 0, 160), (0, 1, 37), (2, 3, 1), (0, 1, 100)],
)
def test_global_access_patterns(checked, warp, order, width, first, stride, active):
    threads, blocks = 160, 2
    n = first + (blocks * threads - 1) * stride + 1
    data, out = np.zeros(n * width + 16, np.uint8), np.zeros(blocks * threads * width, np.uint8)
    code, report = run(checked, "run_strided", width, out, data, first, stride, blocks, threads, active,
                       lane_order=order, block_order=order, seed=width)  # fmt: skip
    assert (code, kinds(report)) == (0, [])
    index = [[b * threads + t for t in range(active)] for b in range(blocks)]
    loads = in_warps([[(first + i * stride) * width for i in block] for block in index], warp)
    stores = in_warps([[i * width for i in block] for block in index], warp)
    expect(report.buffers["a2"].loads, loads, width)
    expect(report.buffers["a1"].stores, stores, width)
    assert report.buffers["a2"].load_widths == {width: len(loads)}
    unique = {a + i for access in loads for a in access for i in range(width)}
    assert report.buffers["a2"].bytes_read == len(unique)
    assert report.buffers["a1"].bytes_written == sum(map(len, stores)) * width
    assert report.buffers["a2"].stores == simt.Traffic() == report.buffers["a1"].loads


def test_a_warp_of_64_that_loads_16_bytes_a_lane_takes_32_sectors(library):
    data, out = np.zeros(1024, np.uint8), np.zeros(1024, np.uint8)
    _, report = run(library(64, True), "run_strided", 16, out, data, 0, 1, 1, 64, 64)
    assert report.buffers["a2"].loads == simt.Traffic(1, 64, 1024, 32, 16, 8)


def test_sectors_are_counted_from_the_start_of_a_buffer(checked):
    """Wherever the host has put it: cudaMalloc aligns to 256 bytes, numpy to 16."""
    counts = set()
    for shift in (0, 16, 48, 80):
        memory, out = np.zeros(4096 + 256, np.uint8), np.zeros(2048, np.uint8)
        part = memory[shift : shift + 2048]
        _, report = run(checked, "run_strided", 16, out, part, 0, 1, 1, 128, 128)
        counts.add(report.buffers["a2"].loads.sectors_32)
    assert counts == {64}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 8, 17, 32, 33])
def test_bank_conflicts(checked, warp, order, width, stride):
    threads = min(warp, 12288 // (width * stride))
    out = np.zeros(threads, np.float32)
    code, report = run(checked, "run_banks", width, out, stride, threads, lane_order=order, seed=stride)
    assert (code, kinds(report)) == (0, [])
    ideal, real = passes([t * stride * width for t in range(threads)], width)
    array = report.buffers["data"]
    for traffic in (array.loads, array.stores):
        assert (traffic.accesses, traffic.bytes) == (1, threads * width)
        assert (traffic.passes_ideal, traffic.passes) == (ideal, real)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_any_places_in_shared_and_global_memory(checked, warp, order, width, seed):
    threads = 2 * warp - 7
    places = np.random.default_rng(seed).integers(0, 512, threads).astype(np.int32)
    data, out = np.zeros(512 * width, np.uint8), np.zeros(2 * threads * width, np.uint8)
    code, report = run(checked, "run_gather", width, out, data, places, threads, lane_order=order, seed=seed)
    assert (code, kinds(report)) == (0, [])
    text = (HERE / "patterns.cu").read_text().split("\n")
    (shared,), (one,) = (
        [
            line.traffic
            for line in report.lines
            if line.operation == "load" and text[line.location.line - 1].endswith(end)
        ]
        for end in ("// gathered from shared memory", "// and from global memory")
    )
    accesses = in_warps([[int(p) * width for p in places]], warp)
    expect(one, accesses, width)
    by_access = [passes(a, width) for a in accesses]
    assert (shared.passes_ideal, shared.passes) == tuple(map(sum, zip(*by_access, strict=True)))


def test_classical_conflicts(library):
    """Stride 32 puts a warp's lanes on one bank; stride 33 on all of them."""
    for warp in (32, 64):
        for stride, real in ((32, warp), (33, warp // 32), (2, 2 * warp // 32)):
            _, report = run(library(warp, True), "run_banks", 4, np.zeros(warp, np.float32), stride, warp)
            assert report.buffers["data"].loads.passes == real


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [64, 96, 70])
def test_loops_whose_rounds_differ_between_lanes(checked, warp, order, threads):
    count = np.random.default_rng(1).integers(0, 9, threads).astype(np.int32)
    data, out = np.zeros(8 * threads, np.float32), np.zeros(threads, np.float32)
    _, report = run(checked, "run_rounds", out, data, count, threads, lane_order=order, seed=4)
    accesses = []
    for start in range(0, threads, warp):
        lanes = range(start, min(start + warp, threads))
        for i in range(8):
            accesses.append([(i * threads + t) * 4 for t in lanes if count[t] > i])
    expect(report.buffers["a1"].loads, [a for a in accesses if a], 4)
    assert report.buffers["a0"].stores.accesses == -(-threads // warp)  # after the loop, all lanes together


@pytest.mark.parametrize("order", ORDERS)
def test_nested_loops_whose_rounds_differ_between_lanes(checked, warp, order):
    """Lanes wait for each other after the inner loop, as on a GPU."""
    threads, outer = 64, 5
    count = np.random.default_rng(2).integers(0, 8, (outer, threads)).astype(np.int32)
    data, out = np.zeros(outer * 8 * threads, np.float32), np.zeros(threads, np.float32)
    _, report = run(checked, "run_nested", out, data, count, outer, threads, lane_order=order, seed=5)
    accesses = [
        [((i * 8 + j) * threads + t) * 4 for t in range(start, start + warp) if count[i, t] > j]
        for start in range(0, threads, warp) for i in range(outer) for j in range(8)
    ]  # fmt: skip
    expect(report.buffers["a1"].loads, [a for a in accesses if a], 4)
    assert report.buffers["a2"].loads.accesses == outer * threads // warp
    assert report.buffers["a0"].stores.accesses == threads // warp


@pytest.mark.parametrize("order", ORDERS)
def test_branches_in_loops_are_told_apart_by_round(checked, warp, order):
    threads, n = 64, 12
    rng = np.random.default_rng(3)
    mask = rng.integers(0, 1 << 63, n).astype(np.uint64)
    mask[3] = 0
    data, out = np.zeros(n * threads, np.float32), np.zeros(threads, np.float32)
    _, report = run(checked, "run_masked", out, data, mask, n, threads, lane_order=order, seed=6)
    accesses = [
        [(i * threads + t) * 4 for t in range(start, start + warp) if int(mask[i]) >> (t % warp) & 1]
        for start in range(0, threads, warp) for i in range(n)
    ]  # fmt: skip
    expect(report.buffers["a1"].loads, [a for a in accesses if a], 4)
    assert report.buffers["a2"].loads.accesses == n * threads // warp
    assert report.buffers["a0"].stores.accesses == threads // warp


def test_lanes_that_took_different_branches_are_together_after_them(checked, warp):
    out, some, everything = (np.zeros(2 * warp, np.float32) for _ in range(3))
    _, report = run(checked, "run_same_condition", out, some, everything, 5, warp)
    accesses = [report.buffers[b].loads.accesses + report.buffers[b].stores.accesses for b in ("a0", "a1", "a2")]
    assert accesses == [1, 1, 2]


def test_lines_of_inlined_helpers_are_those_of_their_callers(checked, warp):
    a, b, out = (np.zeros((2 * warp, 4), np.uint32) for _ in range(3))
    _, report = run(checked, "run_through_helper", out, a, b, 2 * warp)
    text = (HERE / "patterns.cu").read_text().split("\n")
    for name, comment in (("a1", "// line a"), ("a2", "// line b")):
        (line,) = [line for line in report.lines if line.buffer == name]
        assert (line.operation, line.width, line.traffic.accesses) == ("load", 16, 2)
        assert "load(const uint4* p)" in text[line.location.line - 1]
        (caller,) = line.location.callers
        assert text[caller[1] - 1].endswith(comment)
    (store,) = [line for line in report.lines if line.operation == "store"]
    assert store.width == 16 and store.buffer == "a0"


@pytest.mark.parametrize("order", ORDERS)
def test_a_kernel_like_the_real_ones(checked, warp, order):
    """Rows of 512 halves, 16 bytes a lane: each byte is asked for once, and no sector is moved in vain."""
    n = 9
    rng = np.random.default_rng(4)
    rows, vector = rng.standard_normal((n, 512)).astype(np.float16), rng.standard_normal(512).astype(np.float16)
    out = np.zeros(n, np.float32)
    code, report = run(checked, "run_dots", out, rows, vector, n, readonly=(1, 2), scratch=(0,), lane_order=order)
    assert (code, kinds(report)) == (0, [])
    np.testing.assert_allclose(out, rows.astype(np.float64) @ vector.astype(np.float64), rtol=2e-5, atol=1e-4)
    loads = report.buffers["a1"].loads
    assert loads.bytes == rows.nbytes == report.buffers["a1"].bytes_read
    assert loads.sectors_32 * 32 == loads.sectors_128 * 128 == rows.nbytes
    assert report.buffers["a1"].load_widths == {16: n * 64 // warp}
    assert report.buffers["a1"].reread == 1.0
    assert report.buffers["a2"].loads.bytes == 1024
    staged = report.buffers["staged"]
    assert staged.stores.bytes == 2048 and staged.loads.bytes == n * 2048
    assert staged.load_widths == {16: 2 * n * 64 // warp}
    assert (report.buffers["a0"].stores.accesses, report.buffers["a0"].stores.bytes) == (n, 4 * n)
    kernel = report.kernels[0]
    assert (kernel.name, kernel.static_shared, kernel.dynamic_shared, kernel.barriers) == ("dots<512>", 2048, 0, 1)
    steps = (warp.bit_length() - 1) * n
    assert kernel.collectives == steps


def test_the_fast_build_knows_the_static_shared_memory_of_a_kernel(fast):
    _, report = run(
        fast, "run_dots", np.zeros(1, np.float32), np.zeros((1, 512), np.float16), np.zeros(512, np.float16), 1
    )
    assert (report.kernels[0].static_shared, report.totals.launches) == (2048, 1)


def test_the_report_as_text(checked):
    _, report = run(checked, "run_dots", np.zeros(2, np.float32), np.zeros((2, 512), np.float16),
                    np.zeros(512, np.float16), 2)  # fmt: skip
    text = str(report)
    assert text.startswith("no findings\n") and report.table() in text
    assert "dots<512>" in text and "patterns.cu:" in text and "staged" in text
    assert all(line == line.rstrip() for line in text.split("\n"))


def test_counters_of_several_launches_add_up(checked):
    data, out = np.zeros(1024, np.uint8), np.zeros(1024, np.uint8)
    with checked.session() as session:
        session.buffer("in", data, writable=False)
        session.buffer("out", out)
        for launches in (1, 2, 3):
            call(checked, "run_strided", 4, out, data, 0, 1, 2, 128, 128)
            assert session.report.totals.launches == launches
            assert session.report.buffers["in"].loads.bytes == launches * 1024
            assert session.report.buffers["in"].bytes_read == 1024
    assert session.report.kernels[0].launches == 3 and session.report.kernels[0].blocks == 6


def test_shared_arrays_of_the_same_name_are_told_apart(checked):
    out, data = np.zeros(128, np.float32), np.zeros(384, np.float32)
    with checked.session() as session:
        session.buffer("out", out)
        session.buffer("in", data, writable=False)
        call(checked, "missing_barrier", out, data, 1)
        assert set(session.report.buffers) == {"out", "in", "tile"}
        call(checked, "missing_second_barrier", out, data, 1)
    assert set(session.report.buffers) == {"out", "in", "reversed::tile", "reused::tile"}
    assert session.report.buffers["reused::tile"].loads.bytes == 3 * 512
