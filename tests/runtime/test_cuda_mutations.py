"""Faults planted one by one in CUDA sources: the checked runtime, or float64, must catch every one.

Each mutant is the source of a kernel, under a name of its own, with one change; all are compiled into one library. A
fault that is one of memory, barriers or shuffles must be reported with the changed line, or one that it races with.
"""

from unittest.mock import Mock

import pytest

from .cuda_mutants import Fault, Mutants, chosen, kind, narrow, parametrize

SPEC = """
schema: 1
name: {name}
target: bi-v100
model: {{num_heads: {heads}, num_kv_heads: 2, max_seq_len: 4096}}
axes: {{head_size: {size}, gqa_ratio: {ratio}, partition_size: {partition}, block_size: {page}, kv_cache_dtype: {kv}}}
features:
  {{alibi: {alibi}, blocksparse: {sparse}, softcap: {cap}, sliding_window: {window}, sinks: {sinks}, modification: {mod}}}
{defined}
backends: [torch, cuda]
"""
PLAIN = dict(
    size=64, ratio=3, partition=128, page=16, kv="auto", alibi="false", sparse="false", cap="null", window="null",
    sinks="false", mod="null", defined="",
)  # fmt: skip
#: A score and a mask that differ by position, query head and KV head.
NEAR = """
modifications:
  near:
    score: "s + tilt[h] * tanh(0.05 * (k - q)) + base[kvh]"
    mask: "k < 4 or (k - q) % 3 != 1 or h == 2"
    tensors: {tilt: [heads], base: [kv_heads]}
"""
FAMILIES = {
    "dense": PLAIN,
    "wide": {**PLAIN, "size": 80},  # two slices in the reduction
    "odd": {**PLAIN, "size": 40, "page": 8},  # rows end before the threads do
    "stepped": {**PLAIN, "ratio": 32, "partition": 512},  # several steps in a partition
    "biased": {**PLAIN, "alibi": "true"},
    "stored8": {**PLAIN, "kv": "fp8_e4m3"},
    "sparse": {**PLAIN, "sparse": "true"},
    "windowed": {**PLAIN, "window": "150"},
    "sunk": {**PLAIN, "sinks": "true"},
    "capped": {**PLAIN, "cap": "5.0", "alibi": "true"},
    "own": {**PLAIN, "mod": "near", "defined": NEAR},
}


CAP = "    s = 5.0f * tanhf(s / 5.0f);  // softcap\n"
BIAS = "    s = s + shared.slope[head] * static_cast<float>(k - q);  // ALiBi\n"

FAULTS = [
    Fault("no barrier after staging", "race", "stage(a, at, tokens, s);\n    __syncthreads();", "stage(a, at, tokens, s);"),
    Fault("no barrier before softmax", "race", "score(a, at, 0, tokens, s);\n    __syncthreads();", "score(a, at, 0, tokens, s);"),
    Fault("no barrier before the values", "race", "softmax(tokens, s, states);\n    __syncthreads();", "softmax(tokens, s, states);"),
    Fault("no barrier before z is read", "race", "write_states(a, at, states, s);\n    __syncthreads();", "write_states(a, at, states, s);"),
    Fault("no barrier between steps", "race", "first, now, s, sums);\n        __syncthreads();", "first, now, s, sums);", "stepped"),
    Fault("two barriers for one", "barrier", "stage(a, at, tokens, s);\n    __syncthreads();", "stage(a, at, tokens, s);\n    if (threadIdx.x < 64)\n        __syncthreads();\n    else\n        __syncthreads();"),
    Fault("threads that leave before a barrier", "exited", "stage(a, at, tokens, s);\n", "stage(a, at, tokens, s);\n    if (threadIdx.x > 100) return;\n"),
    Fault("shuffle in a divergent branch", "divergent", "z = warp_sum(z);", "if (lane < 8) z = warp_sum(z);"),
    Fault("scores of the tail not written", "uninitialised", "s.weights[h][token] = token < tokens ? sum : -INFINITY;", "if (token < tokens) s.weights[h][token] = sum;"),
    Fault("block numbers not staged to the end", "uninitialised", "i < pages; i += kThreads) s.pages[i]", "i < pages - 1; i += kThreads) s.pages[i]"),
    Fault("partials of empty partitions read", "uninitialised", "count = end - skipped;", "count = a.partitions;", header="pav2_reduce.cuh"),
    Fault("scores past the end of shared memory", "out", "s.weights[h][token] = token", "s.weights[h][token + kStepTokens * kBlockHeads] = token"),
    Fault("block table read past the end", "out", "i < pages; i += kThreads) s.pages[i] = table[i]", "i <= pages; i += kThreads) s.pages[i] = table[i + 64]"),
    Fault("rows past the end of the values", "out", "if (r * kRowsPerRound + first_row >= kHeadSize) continue;", "", "odd"),
    narrow("offset of a page of keys", "page * a.key_page_stride"),
    narrow("offset of a head of keys", "at.kv_head * a.key_head_stride"),
    narrow("offset of a page of values", "page * a.value_page_stride"),
    narrow("offset of a head of values", "at.kv_head * a.value_head_stride"),
    narrow("offset of a query", "at.seq * a.query_stride"),
    narrow("offset of a row of the block table", "at.seq * a.table_stride"),
    narrow("offset in max_logits", "s * a.maxima_seq_stride + h * a.maxima_head_stride + p * a.maxima_part_stride", "pav2_partition.cuh"),
    narrow("offset in exp_sums", "s * a.sums_seq_stride + h * a.sums_head_stride + p * a.sums_part_stride", "pav2_partition.cuh"),
    narrow("offset in tmp_out", "at.seq * a.tmp_seq_stride + head * a.tmp_head_stride + at.partition * a.tmp_part_stride", "pav2_partition.cuh"),
    Fault("partitions past the first 128 lost", "", "const bool live = at < count;", "const bool live = at < min(count, 128);", header="pav2_reduce.cuh", run="long"),
    Fault("only the first round of partitions", "", "p < count; p += kStride * kLoadsInFlight", "p < min(count, kStride); p += kStride * kLoadsInFlight", header="pav2_reduce.cuh", run="long"),
    Fault("a warp's partitions lost", "", "for (int w = 0; w < kReduceWarps; ++w) {\n        total", "for (int w = 1; w < kReduceWarps; ++w) {\n        total", header="pav2_reduce.cuh"),
    Fault("sums not raised to the block's maximum", "", "merged.raise(block_max(merged.m, maxima));", "block_max(merged.m, maxima);", header="pav2_reduce.cuh"),
    Fault("second slice of the head not written", "", "dim >= kHeadSize) return;", "dim >= kHeadSize || slice > 0) return;", "wide", "pav2_reduce.cuh"),
    Fault("empty partitions not marked", "", "p < end; p += stride) write", "p < end; p += stride) if (p < 0) write", header="pav2_partition.cuh"),
    Fault("load at half a grain", "misaligned", "keys[r] += grain * 16 + part", "keys[r] += 4 + grain * 16 + part"),
    Fault("all partitions write one place", "race", "(row * a.partitions + at.slot) * head_size + dim", "row * a.partitions * head_size + dim", header="pav2_partition.cuh"),
    Fault("every lane writes the state", "race", "|| lane != 0) continue;", ") continue;"),
    Fault("no barrier before the maximum is shared", "race", "maxima[threadIdx.x / kWarp] = x;\n    __syncthreads();", "maxima[threadIdx.x / kWarp] = x;", header="pav2_reduce.cuh"),
    Fault("query written through", "read-only", "    const float scale = a.scale;", "    const float scale = a.scale;\n    const_cast<int32_t*>(a.seq_lens)[at.seq] = at.length;"),
    Fault("half a warp reduced", "", "for (int lanes = kWarp / 2;", "for (int lanes = 16;", header="pav2_device.cuh"),
    Fault("wrong page", "", "s.pages[token / kPageTokens] : -1", "s.pages[token / kPageTokens / 2] : -1"),
    Fault("stale values of the tail", "", "if (slot + i >= tokens) x[r][i] = 0.0f;", "if (slot + i >= tokens) x[r][i] *= 0.0f;"),
    Fault("query not scaled", "", "= q * scale;", "= q;"),
    Fault("scores of another head", "", "&s.query[h][element]", "&s.query[kBlockHeads - 1 - h][element]"),
    Fault("partition's own output not divided", "", "dim * a.tmp_dim_stride] = from_float<scalar_t>(sum * inverse)", "dim * a.tmp_dim_stride] = from_float<scalar_t>(sum)", header="pav2_partition.cuh"),
    Fault("sums of earlier steps not rescaled", "", "sums[r][h] *= rescale", "sums[r][h] *= 1.0f", "stepped"),
    Fault("sum of weights of earlier steps lost", "", "states[i].z * rescale + z", "z", "stepped"),
    Fault("slopes one token off", "", "q = at.length - 1", "q = at.length", "biased"),
    Fault("codes taken as they are", "", "* Stored::kCodeScale;\n    const int64_t first", ";\n    const int64_t first", "stored8"),
    Fault("scale of values forgotten", "", "scale_of(a.v_scale_ptr, a.v_scale, at.kv_head * a.v_scale_stride)", "1.0f", "stored8"),
    Fault("skipped blocks attended", "", "if (!attended(a, at, s, h, q, k)) sum = -INFINITY;", "", "sparse"),
    Fault("window one token too long", "", "if (!(q - k < 150))", "if (!(q - k < 151))", "windowed"),
    Fault("window one token too short", "", "if (!(q - k < 150))", "if (!(q - k < 149))", "windowed"),
    Fault("window starts a page late", "", "window / kPageTokens * kPageTokens)", "(window / kPageTokens + 1) * kPageTokens)", "windowed"),
    Fault("pages before the window read", "out", "max(at.partition * kPartitionTokens, window / kPageTokens * kPageTokens)", "at.partition * kPartitionTokens", "windowed"),
    Fault("scratch before the window left", "", "    fill_scratch(a, seq, head, mine, skipped, stride);\n", "", "windowed", "pav2_reduce.cuh"),
    Fault("sinks dropped", "", "total, sink_of(a, head));", "total, -INFINITY);", "sunk", "pav2_reduce.cuh"),
    Fault("a sink of another head", "", "total, sink_of(a, head));", "total, sink_of(a, head ^ 1));", "sunk", "pav2_reduce.cuh"),
    Fault("sinks scaled", "", "total, sink_of(a, head));", "total, a.scale * sink_of(a, head));", "sunk", "pav2_reduce.cuh"),
    Fault("sinks in every partition", "", "s.inverse[h] = states[i].z == 0.0f ? 0.0f : 1.0f / states[i].z;", "s.inverse[h] = 1.0f / (states[i].z + expf(a.sinks[at.first_head + h] - states[i].m));", "sunk"),
    Fault("lse in base 2", "", "base + logf(sum)", "base + log2f(sum)", header="pav2_partition.cuh"),
    Fault("lse without the maximum", "", "base + logf(sum)", "logf(sum)", header="pav2_partition.cuh"),
    Fault("softcap dropped", "", "s = 5.0f * tanhf(s / 5.0f);  // softcap", "", "capped"),
    Fault("softcap before the scale", "", "s = 5.0f * tanhf(s / 5.0f);", "s = 0.125f * 5.0f * tanhf(8.0f * s / 5.0f);", "capped"),
    Fault("softcap after the bias", "", CAP + BIAS, BIAS + CAP, "capped"),
    Fault("slopes of another head", "", "a.alibi_slopes[at.first_head + h]", "a.alibi_slopes[at.first_head + (h + 1) % 3]", "capped"),
    Fault("remainder by C's rule", "", "floor_mod(k - q, 3)", "(k - q) % 3", "own"),
    Fault("query head counted in the block", "", "const int h = at.first_head + head;", "const int h = head;", "own"),
    Fault("tensor of the KV heads by query head", "", "a.tensors[1][at.kv_head]", "a.tensors[1][h & 1]", "own"),
    Fault("mask forgotten", "", "if (!attended(a, at, s, h, q, k)) sum = -INFINITY;", "", "own"),
    Fault("mask forgotten in the last page", "", "if (!attended(a, at, s, h, q, k)) sum", "if (q - k > 15 && !attended(a, at, s, h, q, k)) sum", "own"),
    Fault("position within the partition", "", "k = at.start + first + token;", "k = first + token;", "own"),
    Fault("rank ignored", "", "a.tp_rank * a.num_heads", "0 * a.num_heads", "sparse", "pav2_sparse.cuh"),
]  # fmt: skip


def pytest_generate_tests(metafunc):
    parametrize(metafunc, FAULTS)


@pytest.fixture(scope="module")
def mutants(request, tmp_path_factory):
    specs = {name: SPEC.format(name=name, heads=2 * options["ratio"], **options) for name, options in FAMILIES.items()}
    return Mutants(tmp_path_factory.mktemp("cuda_mutants"), specs, FAULTS, chosen(request.config, FAULTS))


def checked(mutants, row, rows, host):
    """The checked build of a row."""
    return mutants.module("testing.cuda_harness").CheckedKernel(mutants.package, row, host, rows)


def short(kernel):
    """Lengths that reach everything: several pages, a tail, an empty partition."""
    kernel.check(kernel.case([kernel.partition_size + 37, 0, 21, 3 * kernel.partition_size], seed=1))


def far(kernel):
    """Strides beyond 2^31 elements."""
    kernel.check_far_strides(kernel.case([kernel.partition_size + 37, 3], seed=1, shared_blocks=3))


def long(kernel):
    """More than 128 partitions."""
    kernel.check_long(kernel.case([130 * kernel.partition_size], seed=1, kv_heads=1, shared_blocks=32))


RUNS = {"short": short, "far": far, "long": long}


HEALTHY = [*(("short", family) for family in FAMILIES), ("far", "dense"), ("long", "dense")]


@pytest.mark.parametrize("run, family", HEALTHY)
def test_healthy_kernels_pass(mutants, run, family, host):
    RUNS[run](checked(mutants, mutants.healthy[family], list(mutants.healthy.values()), host))


def test_caught(mutants, number):
    run = RUNS[FAULTS[number].run]
    mutants.expect_caught(
        number, lambda: run(checked(mutants, mutants.rows[number], [*mutants.rows.values()], "warp64"))
    )


def test_the_default_has_a_fault_of_each_kind():
    """What finds a fault, its kernel, its file and the run that shows it: 33 kinds among 68 faults."""
    config = Mock(getoption=lambda *args, **options: False)
    planted = [FAULTS[number] for number in chosen(config, FAULTS)]
    assert len(planted) == len({kind(fault) for fault in FAULTS}) == 33 and len(FAULTS) == 68
