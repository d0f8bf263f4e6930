"""Faults planted one by one in CUDA extend kernels: the checked runtime, float64 or the counters must catch each."""

from unittest.mock import Mock

import pytest

from .cuda_mutants import Fault, Mutants, chosen, kind, narrow, parametrize

SPEC = """
schema: 1
name: {name}
target: bi-v100
model: {{num_heads: {heads}, num_kv_heads: 2, max_seq_len: 4096}}
axes: {{head_size: {size}, gqa_ratio: {ratio}, partition_size: 512, block_size: {page}, kv_cache_dtype: {kv}}}
features:
  {{alibi: {alibi}, sliding_window: {window}, sinks: {sinks}, modification: {mod}}}
{defined}
operators: [decode, extend]
backends: [cuda]
"""
PLAIN = dict(
    size=64, ratio=3, page=16, kv="auto", alibi="false", window="null", sinks="false", mod="null", defined="",
)  # fmt: skip
#: A score and a mask that differ by position, query head and KV head, and depend on the length.
NEAR = """
modifications:
  near:
    score: "s + tilt[h] * tanh(0.05 * (k - q)) + base[kvh] + 0.01 * (len - k)"
    mask: "k < 4 or (k - q) % 3 != 1 or h == 2"
    tensors: {tilt: [heads], base: [kv_heads]}
"""
FAMILIES = {
    "dense": PLAIN,
    "odd": {**PLAIN, "size": 40, "page": 8},  # the head ends before its threads do
    "uneven": {**PLAIN, "ratio": 49},  # the blocks of a group have different numbers of heads
    "ragged": {**PLAIN, "ratio": 6, "kv": "fp8_e4m3", "size": 256},  # a partition is no whole number of steps
    "biased": {**PLAIN, "alibi": "true"},
    "windowed": {**PLAIN, "window": "150"},
    "sunk": {**PLAIN, "sinks": "true"},
    "own": {**PLAIN, "mod": "near", "defined": NEAR},
}

POSITION = "const int q = at.position + row / kBlockHeads;"
TILE = "at.length - query_len + index * kTileTokens"


def header(name, old, new, family="dense", run="short", found=""):
    """A fault in the header of extend kernels."""
    return Fault(name, found, old, new, family, "pav2_extend.cuh", run)


FAULTS = [
    # barriers
    Fault("no barrier after staging", "uninitialised", "stage(a, at, s);\n    __syncthreads();", "stage(a, at, s);"),
    Fault("no barrier before the scores", "race", "store_keys(loads, s);\n        __syncthreads();", "store_keys(loads, s);"),
    Fault("no barrier before softmax", "race", "score(at, scale, first, tokens, s);\n        __syncthreads();", "score(at, scale, first, tokens, s);"),
    Fault("no barrier before the values", "race", "store_values(tokens, loads, s);\n        __syncthreads();", "store_values(tokens, loads, s);"),
    Fault("no barrier between steps", "race", "add_values(at, tokens, s, sums);\n        __syncthreads();", "add_values(at, tokens, s, sums);"),
    Fault("no barrier before 1 / z is read", "race", "states, s);\n    __syncthreads();", "states, s);", run="one"),
    # positions and limits
    Fault("a later key attended", "", "if (k > q) return", "if (k > q + 1) return"),
    Fault("own key not attended", "", "if (k > q) return", "if (k >= q) return"),
    Fault("limit of the tile's last row", "", POSITION, "const int q = at.position + at.tokens - 1;"),
    Fault("limit of the tile's first row", "", POSITION, "const int q = at.position;"),
    Fault("rows split wrongly", "", POSITION, "const int q = at.position + row % kTileTokens;"),
    header("cached tokens counted twice", TILE, "at.length + index * kTileTokens", found="out"),
    header("every tile at the first position", TILE, "at.length - query_len"),
    header("rows of the first tile only", "at.first = begin + index * kTileTokens", "at.first = begin", found="race"),
    header("length not clamped", "clamped_length(a, at.seq, kPageTokens)", "a.seq_lens[at.seq]", run="clamped"),
    # tiles and sequences
    header("sequence of the tile before", "packed_tile<kTileTokens>(a, middle) <= tile", "packed_tile<kTileTokens>(a, middle) < tile"),
    header("no tile for ragged edges", "query_begin(a, seq) / kTileTokens + seq", "query_begin(a, seq) / kTileTokens"),
    header("rows of padding written", "query_begin(a, at.seq + 1) - begin", "a.num_tokens - begin", run="direct", found="race"),
    header("max_query_len ignored", "min(query_len, a.max_query_len) - index", "query_len - index", run="clamped"),
    header("positions depend on max_query_len", TILE, "at.length - min(query_len, a.max_query_len) + index * kTileTokens", run="clamped"),
    header("begin not clamped", "max(0, min(a.query_start_loc[seq], a.num_tokens))", "a.query_start_loc[seq]", run="hostile", found="out"),
    Fault("rows past the tile", "out", "at.rows = at.tokens * kBlockHeads", "at.rows = kRows"),
    Fault("heads of the next group", "race", "row >= at.rows || head >= at.heads) continue;\n#pragma", "row >= at.rows) continue;\n#pragma", "uneven"),
    Fault("head counted in the block", "", "const int h = at.first_head + head;", "const int h = head;", "own"),
    Fault("slopes of another row", "", "const int head = row % kBlockHeads;", "const int head = row / kTileTokens % kBlockHeads;", "biased"),
    Fault("query position of the last row in the bias", "", "static_cast<float>(k - q)", "static_cast<float>(k - (at.position + at.tokens - 1))", "biased"),
    Fault("len of the row", "", "at.length - k", "q + 1 - k", "own"),
    # the window
    Fault("window one key too long", "", "if (!(q - k < 150))", "if (!(q - k < 151))", "windowed"),
    Fault("window of the tile's last row", "", "const int window = at.window_begin(kWindow);", "const int window = max(0, at.end() - kWindow);", "windowed", run="window"),
    Fault("pages before the window read", "out", "max(partition * kPartitionTokens, window / kPageTokens * kPageTokens)", "partition * kPartitionTokens", "windowed"),
    header("partitions before the window reduced", "at.window_begin(kWindow) / kPartitionTokens : 0", "0 : 0", "windowed", "window", "uninitialised"),
    # keys and values
    Fault("keys past the partition attended", "", "token < tokens ? final : -INFINITY", "final", "windowed", run="window"),
    Fault("stale values of the tail", "", "        clear_from<kLoadWords>((tokens - token) * kItemBytes, loads[r]);\n", ""),
    Fault("pages past the end read", "out", "if (token >= at.keys) continue;", "", run="one"),
    Fault("values of other rows", "", "units[d] = load<kUnitBytes / 4>(s.tile + value_place(byte));", "units[d] = load<kUnitBytes / 4>(s.tile + byte);"),
    Fault("elements past the head", "race", "            if (dim >= kHeadSize) continue;\n            const float sum", "            const float sum", "odd"),
    Fault("scale missing", "", "const float sum = scale * lane_sum", "const float sum = lane_sum"),
    Fault("codes taken as they are", "", "a.scale * k_scale * Stored::kCodeScale", "a.scale * k_scale", "ragged"),
    Fault("scale of values forgotten", "", "sums[i][d] * v_scale", "sums[i][d]", "ragged"),
    Fault("sums of earlier steps not rescaled", "", "sums[i][d] *= rescale;", "sums[i][d] *= 1.0f;"),
    # results
    header("partitions of another token reduced", "static_cast<int64_t>(blockIdx.y) * a.num_heads", "static_cast<int64_t>(tile * kTileTokens) * a.num_heads"),
    header("last partition not reduced", "ceil_div(at.end(), kPartitionTokens) - skipped", "at.end() / kPartitionTokens - skipped"),
    header("partitions without keys reduced", "ceil_div(at.end(), kPartitionTokens) - skipped", "a.partitions", found="uninitialised"),
    header("tokens past the tile reduced", "    if (token >= at.tokens) return;\n", "", found="uninitialised"),
    header("every token written to the first", "out_row(a, at.first + token, head)", "out_row(a, at.first, head)", found="race"),
    Fault("sinks dropped", "", "sink_of(a, at.first_head + head)", "-INFINITY", "sunk", run="one"),
    # counters
    Fault("keys loaded twice", "", "        store_keys(loads, s);\n", "        load_step<16>(keys, a.key_page_stride, at, s, first, loads);\n        store_keys(loads, s);\n", run="counters"),
    Fault("values in few banks", "", "return byte ^ byte / kPeriod % kUnits * 16;", "return byte;", run="counters"),
    Fault("blocks without keys write", "", "(at.keys <= 0 && a.partitions > 1)", "false", run="empty"),
    # offsets
    narrow("offset of a query", "at.first * a.query_stride"),
    narrow("offset of a page", "s.pages[token / kPageTokens] * page_stride"),
    narrow("offset of a head of keys", "at.kv_head * a.key_head_stride"),
    narrow("offset of a head of values", "at.kv_head * a.value_head_stride"),
    narrow("offset of a row of the block table", "at.seq * a.table_stride"),
]  # fmt: skip


def pytest_generate_tests(metafunc):
    parametrize(metafunc, FAULTS)


@pytest.fixture(scope="module")
def mutants(request, tmp_path_factory):
    specs = {name: SPEC.format(name=name, heads=2 * options["ratio"], **options) for name, options in FAMILIES.items()}
    numbers = chosen(request.config, FAULTS)
    return Mutants(tmp_path_factory.mktemp("extend_mutants"), specs, FAULTS, numbers, "extend")


def checked(mutants, row, rows, host):
    """The checked build of a row."""
    return mutants.module("extend.cuda_harness").CheckedExtend(mutants.package, row, host, rows)


def short(kernel):
    """Packed tiles of all kinds: two in a sequence, none, and one with keys of two partitions."""
    tile, keys, page = kernel.row.tile_tokens, kernel.row.partition_size, kernel.key.block_size
    case = kernel.case(
        [tile + 1, 0, 1, 2, 1, 3], [30, 4, 2 * page, keys - 1, 0, 7], seed=1, leading_rows=2, trailing_rows=3
    )
    kernel.check(case)


def direct(kernel):
    """The same number of tiles for each sequence."""
    kernel.check(kernel.case([3, 1, 2], [5, 0, 40], seed=2, trailing_rows=2))


def window(kernel):
    """Windows that begin in different pages, in the second partition, and in the first one to end in the second."""
    tile, keys = kernel.row.tile_tokens, kernel.row.partition_size
    kernel.check(kernel.case([tile, 2, 3], [200, keys + 160, keys + 40], seed=8, kv_heads=1))


def one(kernel):
    """One partition: the blocks write the outputs."""
    kernel.check(kernel.case([3, 1], [5, 9], seed=3))


def clamped(kernel):
    """Lengths past max_seq_len, and queries of more than max_query_len tokens."""
    page = kernel.key.block_size
    kernel.check(kernel.case([4, 3, 2], [page + 5, -4, 1], seed=6, max_seq_len=page + 2, max_query_len=3))


def hostile(kernel):
    """Offsets that are negative, fall, or point past the query."""
    starts = [5, -3, 2, 2, 6, 900, 950]
    left = [0, 2, 0, 4, 3, 0], [3, 16, 0, 1, 7, 2]
    kernel.check(kernel.case(*left, seed=7, max_query_len=4, starts=starts, tokens=9))


def far(kernel):
    """Strides beyond 2^31 elements."""
    kernel.check_far_strides(kernel.case([3, 2], [37, 3], seed=1, shared_blocks=3))


def counters(kernel):
    """What is loaded, and from which banks."""
    page, tile = kernel.key.block_size, kernel.row.tile_tokens
    case = kernel.case([tile, 1], [8 * page - tile, page - 1], seed=4, poison=False)
    kernel.check_counters(case, page_bytes=4 * page * kernel.key.head_size, shared_bytes=SHARED, blocks_per_group=1)


def empty(kernel):
    """Blocks without keys."""
    kernel.check_empty_work(kernel.case([2, 1], [40, 3], seed=5, kv_heads=1), max_seq_len=6 * kernel.row.partition_size)


RUNS = {run.__name__: run for run in (short, direct, window, one, clamped, hostile, far, counters, empty)}

#: Bytes of shared memory of the dense kernel.
SHARED = 47_744

HEALTHY = [
    *(("short", family) for family in FAMILIES),
    *((run, "dense") for run in RUNS if run not in ("short", "window")),
]
HEALTHY += [("window", "windowed"), ("one", "sunk")]


@pytest.mark.parametrize("run, family", HEALTHY)
def test_healthy_kernels_pass(mutants, run, family, host):
    RUNS[run](checked(mutants, mutants.healthy[family], list(mutants.healthy.values()), host))


def test_caught(mutants, number):
    run = RUNS[FAULTS[number].run]
    mutants.expect_caught(
        number, lambda: run(checked(mutants, mutants.rows[number], [*mutants.rows.values()], "warp64"))
    )


def test_the_default_has_a_fault_of_each_kind():
    """What finds a fault, its kernel, its file and the run that shows it: 26 kinds among 54 faults."""
    config = Mock(getoption=lambda *args, **options: False)
    planted = [FAULTS[number] for number in chosen(config, FAULTS)]
    assert len(planted) == len({kind(fault) for fault in FAULTS}) == 26 and len(FAULTS) == 54
