"""What a call may cost at full size: workspace, calls, host reads. Qwen3.6, 24 query and 4 KV heads, head size 256."""

import importlib

import pytest

from pav2gen.plan import kernel as plan
from pav2gen.reading import spec_file as spec
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.testing.cases import Case, make

MIB = 1 << 20
#: Sequences and their length: the calls of the promise, and smaller ones that fill the workspace as well.
SHAPES = [(1, 100_000), (16, 8_192), (256, 1_000)]
SMALLER = [(1, 20_000), (16, 1_500), (60, 600)]
QWEN = spec.load("specs/qwen36.yaml")
PLANS = {
    (v.dtype, v.kv_cache_dtype, v.partition_size): plan.plan(v, QWEN)
    for v in spec.variants(QWEN)
    if v.gqa_ratio == 6 and v.block_size == 16
}


@pytest.fixture(scope="module")
def probe(package):
    """The package's own: it knows the memory that the package's kernels keep."""
    return importlib.import_module(f"{package.__name__}.runtime.testing.probe")


def call_of(variant, seqs, length):
    return ragged_call(variant, (length,) * seqs)


def kernel_of(package, variant):
    name = variant.torch_path.removesuffix(".py").replace("/", ".")
    return importlib.import_module(f"{package.__name__}.{name}")


#: A batch of one long sequence among short ones, and one of all lengths.
RAGGED = [(100_000, *[40] * 15), tuple(range(1, 20_000, 1700))]


def ragged_call(variant, lengths):
    case = Case(Key(*variant.key), variant.partition_size, lengths, kv_heads=4, shared_blocks=512)
    return make(case)._replace(lse=None)  # the plan counts the calls of a call without it


def pytest_generate_tests(metafunc):
    """By default one kernel of each storage, with smaller calls, and the longest call once. With --full everything.

    The bound is that of a tile, and the smaller calls have several tiles too.
    """
    if "key" not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("--full", default=False):
        calls = [(key, *shape) for key in PLANS for shape in SHAPES + SMALLER]
    else:
        keys = [key for key in PLANS if (key[0], key[2]) == ("float16", 512)]
        calls = [(key, *shape) for key in keys for shape in SMALLER] + [(keys[0], *SHAPES[0])]
    metafunc.parametrize("key, seqs, length", calls, ids=["-".join(map(str, (*call[0], *call[1:]))) for call in calls])


def test_workspace_on_a_cpu(package, probe, key, seqs, length):
    held = PLANS[key]
    assert held.torch.cpu.fit([length] * seqs, 4, key[2], 16, known=True).counts().tiles > 1
    call, module = call_of(held.variant, seqs, length), kernel_of(package, held.variant)
    peak = probe.peak_bytes(lambda: module.paged_attention(call))
    assert peak <= held.torch.cpu.chunk + held.torch.cpu.segment + MIB // 4


@pytest.mark.parametrize("lengths", RAGGED, ids=["one-long", "all-lengths"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_ragged_batches_on_a_cpu(package, probe, dtype, lengths):
    held = PLANS[dtype, "auto", 512]
    call, module = ragged_call(held.variant, lengths), kernel_of(package, held.variant)
    tiling = held.torch.cpu.fit(lengths, 4, 512, 16, known=True)
    assert tiling.ordered and tiling.covered == 1
    counts = probe.count_calls(lambda: module.paged_attention(call))
    assert sum(counts.values()) == held.torch.calls(tiling) + 2  # two clear the scratch that no tile reaches
    assert counts["_local_scalar_dense"] == 0
    peak = probe.peak_bytes(lambda: module.paged_attention(call))
    assert peak <= held.torch.cpu.chunk + held.torch.cpu.segment + MIB // 4


@pytest.mark.parametrize("seqs, length", SHAPES)
def test_workspace_with_the_share_of_a_gpu(package, probe, monkeypatch, seqs, length):
    held = PLANS["float16", "auto", 512]
    call, module = call_of(held.variant, seqs, length), kernel_of(package, held.variant)
    monkeypatch.setattr(module, "CPU", module.GPU)
    peak = probe.peak_bytes(lambda: module.paged_attention(call))
    assert peak <= QWEN.limits.workspace_mib * MIB


def test_calls_of_a_long_context_on_a_cpu(package, probe):
    held = PLANS["float16", "auto", 512]
    call, module = call_of(held.variant, 1, 100_000), kernel_of(package, held.variant)
    counts = probe.count_calls(lambda: module.paged_attention(call))
    tiling = held.torch.cpu.fit([100_000], 4, 512, 16, known=True)
    chunks = tiling.counts().chunks
    assert sum(counts.values()) == held.torch.calls(tiling) <= 12 + 14 * chunks
    assert counts["_local_scalar_dense"] == 0


def test_calls_of_a_long_context_on_a_gpu(package, probe, monkeypatch):
    held = PLANS["float16", "auto", 512]
    call, module = call_of(held.variant, 1, 100_000), kernel_of(package, held.variant)
    monkeypatch.setattr(module, "CPU", module.GPU)
    counts = probe.count_calls(lambda: module.paged_attention(call))
    assert sum(counts.values()) == held.torch_calls(1, 100_000, held.torch.gpu, known=True) <= 300


@pytest.mark.parametrize("lengths", [(1, 1, 1), (5000, 16, 16), (5000, 5000, 5000)])
def test_calls_do_not_depend_on_lengths_that_the_host_does_not_read(package, probe, lengths):
    held = PLANS["float16", "auto", 512]
    case = Case(Key(*held.variant.key), 512, lengths, kv_heads=4, shared_blocks=512, max_seq_len=5000)
    call, module = make(case)._replace(read_lengths=False, lse=None), kernel_of(package, held.variant)
    counts = probe.count_calls(lambda: module.paged_attention(call))
    assert sum(counts.values()) == held.torch_calls(3, 5000, held.torch.cpu)


def test_a_short_call_is_a_few_dozen_calls(package, probe):
    held = PLANS["float16", "auto", 512]
    call, module = call_of(held.variant, 1, 16), kernel_of(package, held.variant)
    assert sum(probe.count_calls(lambda: module.paged_attention(call)).values()) <= 30
