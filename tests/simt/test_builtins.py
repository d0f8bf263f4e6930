"""Every builtin against a plain model, at both warp sizes."""

from __future__ import annotations

import math
import random
import re
from fractions import Fraction

import numpy as np
import pytest

from pav2gen.runtime import simt

from . import models
from .helpers import HERE, call, kinds, run

FORMATS = {"half": (0, models.HALF), "bfloat16": (1, models.BFLOAT)}


def words(n: int, dtype: type = np.int32, shape: tuple[int, ...] = ()) -> np.ndarray:
    return np.zeros((n, *shape), dtype)


def test_coordinates_of_three_dimensional_grids_and_blocks(fast, warp):
    grid, block = (3, 2, 2), (5, 4, 6)
    out = words(12 * 120, np.uint32, (8,))
    assert call(fast, "run_coordinates", out, *grid, *block) == 0
    expected = [
        [tx, ty, tz, bx, by, bz, warp, ((tz * 4 + ty) * 5 + tx) % warp]
        for bz in range(2) for by in range(2) for bx in range(3)
        for tz in range(6) for ty in range(4) for tx in range(5)
    ]  # fmt: skip
    assert out.tolist() == expected


TYPES = [np.float32, np.int32, np.uint32, np.int64, np.uint64, np.float64, np.float16, np.uint32]


@pytest.mark.parametrize("kind", ["idx", "up", "down", "xor"])
@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_shuffles_of_all_types_and_widths(fast, warp, kind, order):
    rng = np.random.default_rng(1)
    threads = 2 * warp
    for number, dtype in enumerate(TYPES):
        data = rng.integers(0, 60000, threads).astype(dtype)
        for width in (2, 4, 8, 16, 32, warp) if number == 0 else (warp // 2, warp):
            for operand in (0, 1, 3, width // 2, width - 1):
                out = np.zeros_like(data)
                code, report = run(fast, "run_shuffles", number, out, data, threads,
                                   ["idx", "up", "down", "xor"].index(kind), operand, width,
                                   lane_order=order, seed=operand)  # fmt: skip
                source = [
                    t // warp * warp + models.shuffle_source(kind, t % warp, operand, width) for t in range(threads)
                ]
                assert (code, kinds(report)) == (0, [])
                assert out.tolist() == data[source].tolist(), (dtype, width, operand)


def test_a_shuffles_width_is_the_warp_by_default(fast, warp):
    out = words(warp)
    assert call(fast, "run_default_width", out) == 0
    down = [min(t + 1, warp - 1) for t in range(warp)]
    assert out.tolist() == [3 + 1000 * (t ^ warp // 2) + 1000000 * down[t] for t in range(warp)]


@pytest.mark.parametrize("bits", [(1 << 64) - 1, 0x1F, 0xF0F0F0F0F0F0F0F1])
def test_votes(fast, warp, bits):
    threads = 2 * warp - 5
    data = np.random.default_rng(2).integers(0, 3, threads).astype(np.int32)
    out = words(threads, np.uint64, (5,))
    mask = bits & ((1 << warp) - 1)
    assert call(fast, "run_votes", out, data, threads, bits - (1 << 64) if bits >> 63 else bits) == 0
    for t in range(threads):
        if not mask >> t % warp & 1:
            assert not out[t].any()
            continue
        lanes = [u for u in range(t // warp * warp, min(threads, t // warp * warp + warp)) if mask >> u % warp & 1]
        ballot = sum(1 << u % warp for u in lanes if data[u])
        match = sum(1 << u % warp for u in lanes if data[u] == data[t])
        assert out[t, :4].tolist() == [ballot, ballot != 0, all(data[u] for u in lanes), match]
        assert out[t, 4] & np.uint64(1 << t % warp)


def test_warp_reductions(fast, warp):
    threads = 2 * warp
    data = np.random.default_rng(3).integers(0, 1 << 32, threads, dtype=np.uint32)
    out = words(threads, np.uint32, (8,))
    assert call(fast, "run_reductions", out, data, threads) == 0
    for w in range(2):
        lanes = data[w * warp : (w + 1) * warp]
        signed = lanes.view(np.int32)
        expected = [
            int(lanes.sum(dtype=np.uint64)) & 0xFFFFFFFF, lanes.min(), lanes.max(),
            int(signed.min()) & 0xFFFFFFFF, int(signed.max()) & 0xFFFFFFFF,
            np.bitwise_and.reduce(lanes), np.bitwise_or.reduce(lanes), np.bitwise_xor.reduce(lanes),
        ]  # fmt: skip
        assert (out[w * warp : (w + 1) * warp] == np.array(expected, np.uint32)).all()


@pytest.mark.parametrize("ones", [0, 1, 99, 200])
def test_barriers_that_count(fast, ones):
    data = np.zeros(200, np.int32)
    data[np.random.default_rng(4).permutation(200)[:ones]] = 5
    out = words(200, np.int32, (3,))
    assert call(fast, "run_barrier_votes", out, data, 200) == 0
    assert (out == [ones, ones == 200, ones > 0]).all()


def test_integer_functions(fast):
    rng = np.random.default_rng(5)
    corners = [0, 1, -1, 2, 31, 32, 0x7FFFFFFF, -0x80000000, 0x00FF00FF, 0x7654, 0xBA98, 0x800000]
    triples = [(a, b, c) for a in corners for b in corners for c in (0, 5, -3, 0x7654, 0x3210, 0xC8F1)]
    triples += rng.integers(-(1 << 31), 1 << 31, (1000, 3)).tolist()
    data = np.array(triples, np.int64).astype(np.int32)
    out = words(len(data), np.int32, (24,))
    assert call(fast, "run_integers", out, data, len(data)) == 0
    for triple, got in zip(data.tolist(), out.tolist(), strict=True):
        assert got == models.integers(*triple), triple


def test_float_functions(fast):
    rng = np.random.default_rng(6)
    data = np.concatenate([rng.standard_normal((500, 3)) * 4, [[0.5, 2, -1], [1.5, -0.25, 3]]]).astype(np.float32)
    out = words(len(data), np.float32, (24,))
    assert call(fast, "run_floats", out, data, len(data)) == 0
    a, b, c = data.astype(np.float64).T
    size = abs(a)
    close = {0: np.exp(a), 1: np.exp2(a), 2: np.log(size), 5: size**-0.5, 16: size**b, 17: np.log2(size), 18: np.sin(a),
             19: np.cos(a)}  # fmt: skip
    for column, expected in close.items():
        np.testing.assert_allclose(out[:, column], expected, rtol=4e-7, atol=1e-7)
    exact = {3: a / b, 4: 1 / a, 8: a + b, 9: a * b, 10: a / b, 11: np.sqrt(size), 12: np.clip(a, 0, 1),
             13: np.minimum(a, b), 14: np.maximum(a, b), 15: np.minimum(a, b), 20: a - b, 21: a, 22: b,
             23: c}  # fmt: skip
    for column, expected in exact.items():
        assert (out[:, column] == expected.astype(np.float32)).all(), column
    fused = np.array([float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in data.tolist()]).astype(np.float32)
    assert (out[:, 6] == fused).all() and (out[:, 7] == fused).all()


def test_conversions_to_integers_saturate(fast):
    data = np.array([0, 0.5, 1.5, 2.5, -0.5, -1.5, 2147483520, 2147483648, 3e9, 4294967040, 4294967296, 1e20, -1e20,
                     -2147483648, -1, math.inf, -math.inf, math.nan], np.float32)  # fmt: skip
    out = words(len(data), np.int32, (8,))
    assert call(fast, "run_roundings", out, data, len(data)) == 0
    for x, got in zip(data.tolist(), out.tolist(), strict=True):
        if math.isnan(x):
            assert got == [0] * 8
            continue
        to = [(lambda v: v) if math.isinf(x) else f for f in (round, math.trunc, math.floor, math.ceil)]
        signed = [int(min(max(f(x), -(1 << 31)), (1 << 31) - 1)) for f in to]
        unsigned = [models.signed(int(min(max(f(x), 0), (1 << 32) - 1))) for f in to]
        assert got == signed + unsigned, x


@pytest.mark.parametrize("name", FORMATS)
def test_all_codes_of_16_bits_are_widened(fast, name):
    bfloat, format = FORMATS[name]
    codes = np.arange(65536, dtype=np.uint16)
    out, integers = words(65536, np.float32), words(65536, np.int32, (4,))
    assert call(fast, "run_widen", bfloat, out, integers, codes, 65536) == 0
    expected = np.array([models.decode(int(c), *format) for c in codes])
    assert (
        np.array_equal(np.nan_to_num(out), np.nan_to_num(expected.astype(np.float32)))
        and (np.isnan(out) == np.isnan(expected)).all()
    )
    assert (np.signbit(out) == np.signbit(expected))[~np.isnan(expected)].all()
    finite = np.where(np.isnan(expected), 0, np.clip(expected, -(2.0**31), 2.0**31 - 1))
    for mode, to in enumerate((np.round, np.trunc, np.floor, np.ceil)):
        assert (integers[:, mode] == to(finite).astype(np.int64)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_floats_are_narrowed_at_every_code_and_midpoint(fast, name):
    """Every finite code, the midpoint to its neighbour, and the floats right below and above that."""
    bfloat, format = FORMATS[name]
    top = ((1 << format[0]) - 1) << format[1]
    values = np.array([models.decode(c, *format) for c in range(top)] + [2.0 ** (1 << (format[0] - 1))], np.float64)
    middle = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    below, above = np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))
    data = np.concatenate([values[:-1], middle, below, above, [np.inf, np.nan, 1e-45, 3.4e38]]).astype(np.float32)
    data = np.concatenate([data, -data])
    out = words(len(data), np.uint16, (4,))
    assert call(fast, "run_narrow", bfloat, out, data, len(data)) == 0
    assert (out == models.encode_all(data, *format)).all()
    for i in range(0, len(data), 997):  # the model of the other tests agrees
        assert out[i].tolist() == [
            models.encode(float(data[i]), *format, mode) for mode in ("nearest", "zero", "down", "up")
        ]
    if name == "half":
        with np.errstate(over="ignore"):
            reference = data.astype(np.float16).view(np.uint16)
        assert (out[:, 0] == np.where(np.isnan(data), 0x7FFF, reference)).all()


def pair_samples(name: str) -> np.ndarray:
    rng = random.Random(7)
    corners = [0, 0x8000, 1, 0x8001, 0x3C00, 0xBC00, 0x3F80, 0x7C00, 0xFC00, 0x7F80, 0x7E00, 0x7FC0, 0x03FF, 0x0400,
               0x7BFF, 0x7F7F, 0x0080, 0x007F]  # fmt: skip
    triples = [(a, b, rng.choice(corners)) for a in corners for b in corners]
    triples += [tuple(rng.randrange(65536) for _ in range(3)) for _ in range(700)]
    near = 0x3C00 if name == "half" else 0x3F80
    triples += [
        tuple((near + rng.randrange(-600, 600)) | rng.choice((0, 0x8000)) for _ in range(3)) for _ in range(700)
    ]
    tiny = [tuple(rng.randrange(0x1000) | rng.choice((0, 0x8000)) for _ in range(3)) for _ in range(300)]
    small = 0x1F00 if name == "half" else 0x2000  # products that are subnormal
    tiny += [tuple(small + rng.randrange(-200, 200) for _ in range(3)) for _ in range(300)]
    return np.array(triples + tiny, np.uint16)


def exact(operation: str, a: float, b: float, c: float, format: tuple[int, int]) -> int:
    """One rounding of the exact result; the special values by the rules of IEEE 754."""
    with np.errstate(all="ignore"):
        x, y, z = np.float64(a), np.float64(b), np.float64(c)
        plain = {"+": x + y, "-": x - y, "*": x * y, "/": x / y, "fma": x * y + z}[operation]
    if not math.isfinite(plain) or not all(map(math.isfinite, (a, b))) or (operation == "fma" and not math.isfinite(c)):
        return models.encode(float(plain), *format)
    fa, fb, fc = Fraction(a), Fraction(b), Fraction(c if operation == "fma" else 0)
    value = {"+": lambda: fa + fb, "-": lambda: fa - fb, "*": lambda: fa * fb, "/": lambda: fa / fb,
             "fma": lambda: fa * fb + fc}[operation]()  # fmt: skip
    return models.encode(value, *format, negative_zero=math.copysign(1, plain) < 0)


@pytest.mark.parametrize("name", FORMATS)
def test_16_bit_arithmetic_is_rounded_once(fast, name):
    bfloat, format = FORMATS[name]
    data = pair_samples(name)
    out = words(len(data), np.uint16, (24,))
    assert call(fast, "run_arithmetic", bfloat, out, data, len(data)) == 0
    for codes, got in zip(data.tolist(), out.tolist(), strict=True):
        a, b, c = (models.decode(x, *format) for x in codes)
        results = [exact(op, a, b, c, format) for op in ("+", "-", "*", "/", "fma")]
        assert got[:5] == results, (codes, a, b, c)
        assert got[5:7] == [codes[0] ^ 0x8000, codes[0] & 0x7FFF]
        nan = math.isnan(a) or math.isnan(b)
        assert got[7:9] == ([extreme(codes, a, b, 1), extreme(codes, a, b, -1)]), codes
        bits = [a == b, not nan and a != b, a < b, a <= b, a > b, a >= b, nan or a == b, nan or a < b, math.isnan(a)]
        assert got[10] == sum(int(x) << i for i, x in enumerate(bits))
        assert got[11:17:2] == [results[0], results[2], results[4]]
        assert got[12] == exact("+", b, c, 0.0, format) and got[14] == exact("*", b, c, 0.0, format)
        assert got[16] == exact("fma", b, c, a, format)
        assert got[17] == (0x7FFF if math.isnan(b) else codes[1])
        assert got[18] == exact("+", models.decode(results[0], *format), c, 0.0, format)
        assert got[19] == results[2] and got[20] == codes[0] ^ 0x8000
        assert got[21] == (a < b) | (a == b) << 1 | (a != b) << 2
        assert got[22] == models.encode(float(codes[0] * 3 - 70000), *format)
        if not math.isnan(a):
            assert got[9] == models.encode(math.sqrt(abs(a)), *format)
            assert abs(got[23] - models.encode(math.exp(-abs(a)), *format)) <= 1


def extreme(codes: list[int], a: float, b: float, sign: int) -> int:
    if math.isnan(a) or math.isnan(b):
        return 0x7FFF if math.isnan(a) and math.isnan(b) else codes[1] if math.isnan(a) else codes[0]
    key = [(sign * x, sign * math.copysign(1, x)) for x in (a, b)]
    return codes[0] if key[0] >= key[1] else codes[1]


@pytest.mark.parametrize("number, dtype", [(0, np.int32), (1, np.uint32), (2, np.uint64)])
@pytest.mark.parametrize("order", ["ascending", "random"])
def test_atomics(library, warp, number, dtype, order):
    info = np.iinfo(dtype)
    data = np.random.default_rng(8).integers(info.min, info.max, 100, dtype=dtype, endpoint=True)
    start = np.array([5, info.max, info.min, -1 if info.min else info.max, 0, 77, 0, 0], dtype)
    for checked in (False, True):
        got, old = start.copy(), np.zeros_like(data)
        code, report = run(library(warp, checked), "run_atomics", number, got, data, old, 100, lane_order=order, seed=3)
        assert (code, kinds(report)) == (0, [])
        with np.errstate(over="ignore"):
            assert got[0] == start[0] + data.sum(dtype=dtype)
            assert sorted(old.tolist())[0] >= info.min
        assert got[1:6].tolist() == [
            min(data.min(), start[1]), max(data.max(), start[2]), np.bitwise_and.reduce(data),
            np.bitwise_or.reduce(data), 77 ^ int(np.bitwise_xor.reduce(data)),
        ]  # fmt: skip
        assert got[6] in data
        if order == "ascending":
            partial = start[0] + np.concatenate([np.zeros(1, dtype), np.cumsum(data, dtype=dtype)[:-1]])
            assert old.tolist() == partial.astype(dtype).tolist()
            assert got[6] == data[-1] and got[7] == 100


def test_other_atomics(fast):
    floats, doubles = np.zeros(2, np.float32), np.zeros(1)
    words_, halves = np.array([0, 0, 100], np.uint32), np.zeros(2, np.float16)
    assert call(fast, "run_other_atomics", floats, doubles, words_, halves, 25) == 0
    assert (floats.tolist(), doubles.tolist(), halves.tolist()) == ([12.5, 7.0], [6.25], [25.0, 50.0])
    assert words_.tolist() == [5, 5, 50]  # up to 9 and again; down from 9, after the first wrap


@pytest.mark.parametrize("check", [False, True], ids=["fast", "checked"])
def test_static_dynamic_constant_and_global_storage(library, warp, check):
    program = library(warp, check)
    data = np.random.default_rng(9).standard_normal((5, 96)).astype(np.float32)
    out, scales, called = np.zeros_like(data), np.array([1, 2, 3, 4], np.float32), np.zeros(1, np.int32)
    with program.session() as session:
        session.buffer("in", data, writable=False)
        session.buffer("out", out, initialised=False)
        assert call(program, "run_storage", out, data, scales, 5, called) == 0
    assert kinds(session.report) == []
    assert (out == data[:, ::-1] + scales[np.arange(96) % 4] * data[:, ::-1]).all()
    assert called[0] == 5
    kernel = session.report.kernels[0]
    assert (kernel.name, kernel.static_shared, kernel.dynamic_shared) == ("inner::storage<float, 96>", 384, 384)
    assert (kernel.launches, kernel.blocks, kernel.threads, kernel.barriers) == (1, 5, 480, 5)
    if check:
        assert session.report.buffers["scale"].loads.bytes == 5 * 96 * 4
        assert session.report.buffers["calls"].stores.accesses == 5


def test_vectors_unions_and_large_copies(library, warp):
    for check in (False, True):
        data = np.arange(32 * 4, dtype=np.uint32).reshape(32, 4)
        more = np.arange(32 * 12, dtype=np.int32).reshape(32, 12)
        out, rows = np.zeros_like(data), np.zeros_like(more)
        code, report = run(
            library(warp, check), "run_vectors", out, data, rows, more, 32, readonly=(1, 3), scratch=(0, 2)
        )
        assert (code, kinds(report)) == (0, [])
        expected = data.copy()
        expected[:, 0] = data[:, 3] >> 16
        expected[:, 3] = 7
        assert (out == expected).all()
        more[:, 10:] = 0
        assert (rows == more).all()
        if check:
            buffers = report.buffers
            assert buffers["a1"].load_widths == {16: 1}  # one access of the warp, not four of 4 bytes
            assert buffers["a3"].loads.bytes == 32 * 48 and buffers["a2"].stores.bytes == 32 * (48 + 8)


def test_host_api(fast, warp):
    values = words(12)
    assert call(fast, "host_api", values) == 0
    assert values.tolist() == [warp, 48 << 10, 16, 1, 2, 0x11111111, 0, 101, 9, 9, 0, ord("a")]


@pytest.mark.parametrize(
    "option", [{"native": False}, {"runtime_flags": ("-DSIMT_UCONTEXT",)}], ids=["soft", "ucontext"]
)
def test_without_hardware_conversions_and_without_assembly(library, kept, option):
    """The software conversions give the same bits, the portable switch the same results."""
    native = library(64, False)
    portable = simt.build([HERE / "builtins.cu"], warp_size=64, cache_dir=kept, **option)
    assert native.path != portable.path
    codes = np.arange(65536, dtype=np.uint16)
    floats = np.random.default_rng(10).standard_normal(4096).astype(np.float32) * np.float32(100)
    results = []
    for program in (native, portable):
        wide, integers, narrow = words(65536, np.float32), words(65536, np.int32, (4,)), words(4096, np.uint16, (4,))
        assert call(program, "run_widen", 0, wide, integers, codes, 65536) == 0
        assert call(program, "run_narrow", 0, narrow, floats, 4096) == 0
        shuffled = np.zeros(128, np.float32)
        code, report = run(program, "run_shuffles", 0, shuffled, floats[:128], 128, 3, 5, 64, lane_order="random")
        assert (code, kinds(report)) == (0, [])
        results.append((wide.view(np.uint32).tolist(), narrow.tolist(), shuffled.tolist()))
    assert results[0] == results[1]


def test_a_template_left_to_be_deduced_is_named_by_its_launch(fast, warp):
    data = np.zeros(warp, np.float32)
    _, report = run(fast, "run_shuffles", 0, np.zeros_like(data), data, warp, 0, 0, warp)
    assert re.fullmatch(r"shuffle launched at \S+builtins\.cu:\d+", report.kernels[0].name)


def test_a_session_reports_what_the_fast_build_knows(fast):
    out, data = words(200, np.int32, (3,)), words(200)
    _, report = run(fast, "run_barrier_votes", out, data, 200)
    assert isinstance(report, simt.Report) and not report.checked and not report.lines
    assert (report.totals.barriers, report.totals.blocks, report.totals.threads) == (3, 1, 200)
    assert "barrier_votes" in report.table()
