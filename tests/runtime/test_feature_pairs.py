"""Features alone and in pairs, in both backends and at both warp sizes, held to float64.

By default the PyTorch kernels of every case run, and the CUDA kernels of a few that combine most. ``--full`` runs every
case in CUDA too, and checks each access.
"""

import importlib

import pytest

from pav2gen.commands.build import BuildOptions, build

from .conftest import load, settle

SPEC = """
schema: 1
name: {name}
target: bi-v100
model: {{num_heads: 4, num_kv_heads: 2, max_seq_len: 4096}}
axes: {{head_size: 64, gqa_ratio: 2, partition_size: 64, block_size: 16, kv_cache_dtype: {kv_cache_dtype}}}
features:
  alibi: {alibi}
  blocksparse: {blocksparse}
  softcap: {softcap}
  sliding_window: {sliding_window}
  sinks: {sinks}
  modification: {modification}
{defined}
backends: [torch, cuda]
"""
#: A score and a mask that differ by position, query head and KV head.
NEAR = """
modifications:
  near:
    score: "s + tilt[h] * tanh(0.05 * (k - q)) + base[kvh]"
    mask: "k < 4 or (k - q) % 3 != 1 or h == 2"
    tensors: {tilt: [heads], base: [kv_heads]}
"""
WITHOUT = dict(
    kv_cache_dtype="auto", alibi="false", blocksparse="false", softcap="null", sliding_window="null", sinks="false",
    modification="null", defined="",
)  # fmt: skip
#: What each feature writes into the spec. The window is no multiple of a page, and reaches over three partitions.
WITH = {
    "softcap": {"softcap": "5.0"},
    "window": {"sliding_window": "75"},
    "sinks": {"sinks": "true"},
    "modification": {"modification": "near", "defined": NEAR},
    "alibi": {"alibi": "true"},
    "sparse": {"blocksparse": "true"},
    "fp8": {"kv_cache_dtype": "fp8_e4m3"},
    "int8": {"kv_cache_dtype": "int8"},
}
PAIRS = [
    ("softcap", "window"),
    ("sinks", "window"),
    ("modification", "window"),
    ("alibi", "softcap"),
    ("fp8", "softcap"),
    ("sparse", "softcap"),
]
#: Those that CUDA kernels are compiled for by default. They hold every feature; the last has all that fit together.
COMBINED = [
    ("modification", "window", "sinks"),
    ("alibi", "fp8", "softcap", "sparse"),
    tuple(feature for feature in WITH if feature != "int8"),
]
CASES = [*((feature,) for feature in WITH), *PAIRS, *COMBINED]
NAMES = ["_".join(case) for case in CASES]

#: Scores of this many times N(0, 1): the largest of some hundreds are near 1e4.
SIZES = {"N(0, 1)": 1.0, "1e4": 3500.0}
#: Nothing, one token, one more than the window, and three partitions. The generated tests take every boundary.
LENGTHS = [0, 1, 76, 150]


def full(config):
    """Whether this run is of everything."""
    return config.getoption("--full", default=False)


def in_cuda(config):
    """The cases whose CUDA kernels run."""
    return NAMES if full(config) else ["_".join(case) for case in COMBINED]


def pytest_generate_tests(metafunc):
    if "host" in metafunc.fixturenames:
        metafunc.parametrize("host", ["warp64", "warp32"])
        metafunc.parametrize("case", in_cuda(metafunc.config))
    elif "case" in metafunc.fixturenames:
        metafunc.parametrize("case", NAMES)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """One package with a kernel for each case, each of a spec of its own."""
    folder = tmp_path_factory.mktemp("pairs")
    specs = []
    for name, case in zip(NAMES, CASES):
        fields = dict(WITHOUT)
        for feature in case:
            fields |= WITH[feature]
        specs.append(folder / f"{name}.yaml")
        specs[-1].write_text(SPEC.format(name=name[:32].strip("_"), **fields))
    build(specs, BuildOptions(folder / "package"))
    return load(settle(folder / "package"), "pav2_of_the_feature_pairs")


def row_of(package, case):
    """The row of a case."""
    (row,) = (row for row in package.operator.table.rows if row.spec == case[:32].strip("_"))
    return row


def harness(package, name):
    """A module of the package's own harness."""
    return importlib.import_module(f"{package.__name__}.runtime.testing.{name}")


def cuda(package, config, case, host, kind):
    """The CUDA kernel of a case on the CPU; those of all cases are compiled together."""
    rows = [row_of(package, each) for each in in_cuda(config)]
    return getattr(harness(package, "cuda_harness"), kind)(package, row_of(package, case), host, rows)


@pytest.mark.parametrize("size, captured", [("N(0, 1)", True), ("1e4", False)])
def test_torch_is_right(package, case, size, captured):
    kernel = harness(package, "harness").TorchKernel(package, row_of(package, case))
    kernel.check(kernel.case(LENGTHS, seed=1, score_size=SIZES[size]), captured)


@pytest.mark.parametrize("size", SIZES)
def test_cuda_is_right(package, request, case, host, size):
    kernel = cuda(package, request.config, case, host, "CudaKernel")
    kernel.check(kernel.case(LENGTHS, seed=1, score_size=SIZES[size]))


def test_cuda_passes_the_checks_of_every_access(package, request, case, host):
    if not full(request.config):
        pytest.skip("with --full")
    kernel = cuda(package, request.config, case, host, "CheckedKernel")
    kernel.check(kernel.case([0, 17, 76, 150], seed=2))


def test_scores_are_as_large_as_the_tests_say(package):
    """The largest score of the large calls is about 1e4, so that its error in float32 is what the allowance is for."""
    kernel = harness(package, "harness").TorchKernel(package, row_of(package, "sinks"))
    call = harness(package, "cases").make(kernel.case(LENGTHS, seed=1, score_size=SIZES["1e4"]))
    assert call.scratch is not None
    largest = max(part.m for heads in kernel.truth(call).partitions for parts in heads for part in parts)
    assert 8e3 < largest < 2e4


def test_features_change_the_result(package):
    """The same inputs without one feature of a pair give another result: each feature is at work beside the other."""
    oracle = harness(package, "oracle")
    fields = {"softcap": "softcap", "window": "sliding_window", "sinks": "sinks", "alibi": "alibi_slopes"}
    for pair in PAIRS:
        kernel = harness(package, "harness").TorchKernel(package, row_of(package, "_".join(pair)))
        call = harness(package, "cases").make(kernel.case([150], seed=1, poison=False))
        for feature in pair:
            if feature in fields:
                without = kernel.truth(call._replace(**{fields[feature]: None}))
                assert oracle.excess(without.out.half(), kernel.truth(call).out) > 1, f"{feature} of {pair}"
