"""Faults planted one by one in cache writers and their runtime: generated tests, or the checked runtime, catch each.

A PyTorch mutant is a package of its own. CUDA mutants are sources in one library.
"""

from dataclasses import dataclass
from unittest.mock import Mock

import pytest

from . import cuda_mutants
from .cuda_mutants import Mutants, chosen, kind, parametrize
from .torch_mutants import KERNEL, TorchFault, verdicts

SPEC = """
schema: 1
name: {name}
target: bi-v100
model: {{num_heads: 6, num_kv_heads: 2, max_seq_len: 4096}}
axes: {{head_size: 64, gqa_ratio: 3, partition_size: 64, kv_cache_dtype: {kv}}}
operators: [cache]
backends: [{backend}]
"""
FAMILIES = {"e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2", "codes8": "int8", "copied": "auto"}

CALL, ENCODING = "runtime/writer/call.py", "runtime/writer/encoding.py"


@dataclass(frozen=True)
class Fault(TorchFault):
    """A fault in the writer of ``family``, or in its runtime."""

    family: str = "e4m3"


ROUNDING = "values.add_(space.powers, alpha=shift).sub_(space.powers, alpha=shift)"

FAULTS = [
    Fault("truncation instead of rounding", ENCODING, ROUNDING, "values.view(torch.int32).bitwise_and_(-(1 << (23 - fraction_bits)))"),
    Fault("no saturation", ENCODING, "values.div_(scales).clamp_(-largest, largest)", "values.div_(scales)"),
    Fault("NaN becomes the largest value", ENCODING, ".clamp_max_(E4M3_NAN)", ".clamp_max_(E4M3_NAN - 128)"),
    Fault("the sign of zero lost", ENCODING, "return space.halves.bitwise_or_(signs)", "return space.halves"),
    Fault("subnormals of one bit less", ENCODING, "E5M2_LARGEST, E5M2_SMALLEST = 57344.0, 2.0**-14", "E5M2_LARGEST, E5M2_SMALLEST = 57344.0, 2.0**-13", "e5m2"),
    Fault("infinity kept", ENCODING, "E5M2_LARGEST, E5M2_SMALLEST = 57344.0", "E5M2_LARGEST, E5M2_SMALLEST = 65536.0", "e5m2"),
    Fault("ties rounded up", ENCODING, "values.round_()", "values.add_(0.5).floor_()", "codes8"),
    Fault("-128 stored", ENCODING, "clamp_(-INT8_LARGEST,", "clamp_(-128,", "codes8"),
    Fault("NaN not stored as 0", ENCODING, "nan_to_num_(0.0)", "nan_to_num_(1.0)", "codes8"),
    Fault("scale inverted", ENCODING, "values.div_(scales).clamp_(-largest", "values.mul_(scales).clamp_(-largest"),
    Fault("scale of the neighbouring head", CALL, "scales.mul_(multiple).view", "scales.mul_(multiple).flip(1).view"),
    Fault("scales of K and V swapped", CALL, "(write.k_scale, write.v_scale)", "(write.v_scale, write.k_scale)"),
    Fault("wrong slot in the page", CALL, "slots % page)", "(slots + 1) % page)"),
    Fault("wrong block", CALL, "slots // page,", "(slots + 1) // page,"),
    Fault("negative slot written", CALL, "(slots >= 0) &", "(slots >= -8) &"),
    Fault("slot past the cache written", CALL, " & (slots < num_blocks * page)", ""),
    Fault("a skipped token written over another", CALL, "torch.where(kept, own,", "torch.where(kept | (some > 0), own,"),
    Fault("zeros written where all are skipped", KERNEL, "codes[1, -1].copy_(write.value_cache[0, :, :, 0])", "codes[1, -1].zero_()"),
    Fault("grains of a key in reverse", KERNEL, "codes.view(grain), 0, to.rows", "codes.view(grain).flip(2), 0, to.rows"),
    Fault("values transposed", KERNEL, "index_select(codes, 0,", "index_select(codes.transpose(1, 2).reshape(codes.shape), 0,"),
    Fault("stride of tokens ignored", KERNEL, "values[0].copy_(key)", "values[0].copy_(key.as_strided(key.shape, (key[:1].numel(), key.shape[2], 1)))"),
    Fault("value of the first chunk again", KERNEL, "encode(key, value,", "encode(key, write.value[: len(value)],"),
    Fault("a host read", KERNEL, "to = targets(", "slot_mapping.max().item()\n        to = targets("),
    Fault("workspace beyond its bound", KERNEL, "min(tokens, room)", "tokens", "copied"),
    Fault("a key copied to the value", KERNEL, "codes[1, :-1].copy_(value)", "codes[1, :-1].copy_(key)", "copied"),
]  # fmt: skip


def spec_texts(backend):
    """The spec of each family."""
    return {name: SPEC.format(name=name, kv=kv, backend=backend) for name, kv in FAMILIES.items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The verdicts on the healthy package and on each mutant."""
    return verdicts(tmp_path_factory.mktemp("mutants"), spec_texts("torch"), FAULTS)


def test_the_healthy_package_passes(found):
    assert found[0].passed, found[0].said


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_caught(found, number):
    verdict = found[1][number]
    assert verdict.failed, f"no generated test notices: {FAULTS[number].name}\n{verdict.said}"


@dataclass(frozen=True)
class CudaFault(cuda_mutants.Fault):
    """A fault in the source of a writer of ``family``, or in a header."""

    family: str = "e4m3"


ENCODE = "pav2_encode.cuh"
CUDA_FAULTS = [
    CudaFault("no barrier after the slots", "race", "read_slots(a, first, s);\n    __syncthreads();", "read_slots(a, first, s);"),
    CudaFault("no barrier before the writes", "race", "scale, s);\n    __syncthreads();", "scale, s);"),
    CudaFault("grains of a key side by side", "", "(grain * kPage + slot % kPage) * kGrain", "(slot % kPage * kGrains + grain) * kGrain"),
    CudaFault("values transposed", "", "dim * kPage + slot % kPage", "slot % kPage * kHeadSize + dim"),
    CudaFault("negative slot written", "uninitialised", "if (slot < 0) continue;\n        page[", "page["),
    CudaFault("slot past the cache written", "out", "slot < a.num_slots ? slot : -1", "slot"),
    CudaFault("slots read past their end", "out", "if (first + t < a.num_tokens) {", "{"),
    CudaFault("stride of tokens ignored", "", "from[t * stride + dim]", "from[t * kHeadSize + dim]"),
    CudaFault("scale of another head", "", "scales[head * (", "scales[0 * ("),
    CudaFault("scale of K for V", "", "keys ? a.k_scale : a.v_scale", "a.k_scale"),
    CudaFault("truncation instead of rounding", "", "return (x + (1u << (bits - 1)) - 1u + (x >> bits & 1u)) >> bits;", "return x >> bits;", header=ENCODE),
    CudaFault("ties rounded up", "", "- 1u + (x >> bits & 1u)", "", header=ENCODE),
    CudaFault("no saturation", "", "fminf(fabsf(x), 448.0f)", "fabsf(x)", header=ENCODE),
    CudaFault("NaN becomes the largest value", "", "0x7fu | sign", "0x7eu | sign", header=ENCODE),
    CudaFault("-128 stored", "", "fmaxf(-127.0f", "fmaxf(-128.0f", "codes8", header=ENCODE),
    CudaFault("elements of a key swapped", "", "make_uint4(words[0], words[1]", "make_uint4(words[1], words[0]", "copied"),
]  # fmt: skip


def pytest_generate_tests(metafunc):
    parametrize(metafunc, CUDA_FAULTS)


@pytest.fixture(scope="module")
def mutants(request, tmp_path_factory):
    numbers = chosen(request.config, CUDA_FAULTS)
    return Mutants(tmp_path_factory.mktemp("cuda_mutants"), spec_texts("cuda"), CUDA_FAULTS, numbers, "cache")


def run(mutants, row, rows):
    """Run a row in the checked build on what generated tests give it."""
    kernel = mutants.module("writer.harness").CheckedWriter(mutants.package, row, "warp64", rows)
    kernel.check(kernel.case([-1, 17, -7, *range(29, 50), 0, 80], row_gap=5, block_gap=1))
    one = {} if row.key.kv_cache_dtype == "auto" else {"scales": (1.0, 1.0)}
    kernel.check(kernel.case(range(32), odd=True, **one))
    if row.key.kv_cache_dtype != "auto":
        kernel.check(kernel.case([5, 1, 16], scales=((0.3, 1.7), (0.06, 0.9))))


@pytest.mark.parametrize("family", FAMILIES)
def test_healthy_writers_pass(mutants, family):
    run(mutants, mutants.healthy[family], list(mutants.healthy.values()))


def test_caught_in_cuda(mutants, number):
    mutants.expect_caught(number, lambda: run(mutants, mutants.rows[number], [*mutants.rows.values()]))


def test_the_default_has_a_fault_of_each_kind():
    """What finds a fault, its kernel, its file and the run that shows it: 7 kinds among 16 faults."""
    config = Mock(getoption=lambda *args, **options: False)
    planted = [CUDA_FAULTS[number] for number in chosen(config, CUDA_FAULTS)]
    assert len(planted) == len({kind(fault) for fault in CUDA_FAULTS}) == 7 and len(CUDA_FAULTS) == 16
