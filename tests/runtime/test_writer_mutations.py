"""Faults planted one by one in cache writers and their runtime: generated tests, or the checked runtime, catch each.

A PyTorch mutant is a package of its own; one pytest run takes them all. CUDA mutants are sources in one library.
"""

import importlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest

from pav2gen.commands.build import BuildOptions, build
from pav2gen.runtime.library import package_rows

from .conftest import CAUGHT_ONCE, COUNTING, load, settle

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

KERNEL, CALL, ENCODING = "kernel", "runtime/writer/call.py", "runtime/writer/encoding.py"


@dataclass(frozen=True)
class Fault:
    """One change: in ``file`` (``kernel`` is the writer of ``family``), ``old`` becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
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


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """The number of failed tests of each mutant, and of the healthy package."""
    root = tmp_path_factory.mktemp("mutants")
    specs = write_specs(root, "torch")
    build(specs, BuildOptions(root / "healthy"))
    for number, fault in enumerate(FAULTS):
        plant(fault, root / "healthy", root / f"mutant{number}")
    (root / "conftest.py").write_text(CAUGHT_ONCE)
    report = root / "report.xml"
    command = [sys.executable, "-m", "pytest", *COUNTING]
    tests = sorted(str(path) for path in root.glob("*/*/tests/test_*.py"))
    command += [f"--junitxml={report}", f"--rootdir={root}", *tests]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.returncode in (0, 1), result.stdout[-2000:] + result.stderr[-2000:]
    failures = {"healthy": 0, **{f"mutant{number}": 0 for number in range(len(FAULTS))}}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        failures[case.get("classname").split(".")[0]] += failed
    return failures


def write_specs(root, backend):
    """A spec for each family."""
    for name, kv in FAMILIES.items():
        (root / f"{name}.yaml").write_text(SPEC.format(name=name, kv=kv, backend=backend))
    return [root / f"{name}.yaml" for name in FAMILIES]


def plant(fault, healthy, folder):
    """A package with the fault's family alone, and the fault in it."""
    ignored = shutil.ignore_patterns(*(name for name in FAMILIES if name != fault.family), "simt", "__pycache__")
    shutil.copytree(healthy, folder, ignore=ignored)
    (folder / "runtime" / "simt").symlink_to(healthy / "runtime" / "simt")
    file = next((folder / fault.family / "torch_kernels").glob("*.py")) if fault.file == KERNEL else folder / fault.file
    text = file.read_text()
    assert fault.old in text, f"{fault.name}: {fault.old!r} is not in {file.name}"
    file.write_text(text.replace(fault.old, fault.new))
    compile(file.read_text(), str(file), "exec")


def test_the_healthy_package_passes(verdicts):
    assert verdicts["healthy"] == 0


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_caught(verdicts, number):
    assert verdicts[f"mutant{number}"] > 0, f"no generated test notices: {FAULTS[number].name}"


@dataclass(frozen=True)
class CudaFault:
    """``old`` becomes ``new``, once; ``found`` is the kind of finding, or empty where the bytes tell."""

    name: str
    found: str
    old: str
    new: str
    family: str = "e4m3"
    header: str = ""


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
    CudaFault("-128 stored", "", "fmaxf(-127.0f", "fmaxf(-128.0f", "codes8", ENCODE),
    CudaFault("elements of a key swapped", "", "make_uint4(words[0], words[1]", "make_uint4(words[1], words[0]", "copied"),
]  # fmt: skip


class Mutants:
    """A package with the sources of all mutants beside the healthy ones, and their rows."""

    def __init__(self, root):
        self.root = root / "package"
        build(write_specs(root, "cuda"), BuildOptions(self.root))
        self.healthy = {row.spec: row for row in package_rows(self.root)}
        planted = [self.plant(number, fault) for number, fault in enumerate(CUDA_FAULTS)]
        self.root = settle(self.root)
        self.package = load(self.root, "pav2_of_the_writer_mutants")
        self.healthy = {row.spec: row for row in self.package.kernels.rows}
        self.rows = [
            self.healthy[fault.family]._replace(symbol=symbol, cuda=path)
            for fault, (symbol, path) in zip(CUDA_FAULTS, planted)
        ]

    def plant(self, number, fault):
        """Write the source of a mutant, with headers of its own where the fault is in one. Returns symbol and path."""
        row = self.healthy[fault.family]
        text = (self.root / row.cuda).read_text()
        if fault.header:
            folder = self.root / "runtime" / f"mutant{number}"
            shutil.copytree(self.root / "runtime" / "cuda", folder)
            for header in folder.iterdir():
                content = header.read_text()
                content = changed(fault, content) if header.name == fault.header else content
                header.write_text(content.replace("namespace pav2", f"namespace mutant{number}"))
            text = text.replace("runtime/cuda/", f"runtime/mutant{number}/")
            text = text.replace("using namespace pav2;", f"using namespace mutant{number};")
        else:
            text = changed(fault, text)
        own = f"{row.symbol}_mutant{number}"
        text = re.sub(rf"\b{row.symbol}\b", own, text)
        text = re.sub(rf"\b{row.symbol.removeprefix('pav2_')}\b", f"mutant{number}_kernel", text)
        path = f"{row.spec}/cuda_kernels/mutant{number}.cu"
        (self.root / path).write_text(text)
        return own, path


def changed(fault, text):
    assert fault.old in text, f"{fault.name}: {fault.old!r} is not in the source"
    return text.replace(fault.old, fault.new, 1)


@pytest.fixture(scope="module")
def mutants(tmp_path_factory):
    return Mutants(tmp_path_factory.mktemp("cuda_mutants"))


def run(mutants, row, rows):
    """Run a row in the checked build on what generated tests give it."""
    harness = importlib.import_module(f"{mutants.package.__name__}.runtime.writer.harness")
    kernel = harness.CheckedWriter(mutants.package, row, "warp64", rows)
    kernel.check(kernel.case([-1, 17, -7, *range(29, 50), 0, 80], row_gap=5, block_gap=1))
    one = {} if row.key.kv_cache_dtype == "auto" else {"scales": (1.0, 1.0)}
    kernel.check(kernel.case(range(32), odd=True, **one))
    if row.key.kv_cache_dtype != "auto":
        kernel.check(kernel.case([5, 1, 16], scales=((0.3, 1.7), (0.06, 0.9))))


@pytest.mark.parametrize("family", FAMILIES)
def test_healthy_writers_pass(mutants, family):
    run(mutants, mutants.healthy[family], list(mutants.healthy.values()))


@pytest.mark.parametrize("number", range(len(CUDA_FAULTS)), ids=[each.name.replace(" ", "-") for each in CUDA_FAULTS])
def test_caught_in_cuda(mutants, number):
    fault = CUDA_FAULTS[number]
    with pytest.raises((AssertionError, RuntimeError)) as raised:  # a finding is an AssertionError too
        run(mutants, mutants.rows[number], mutants.rows)
    kinds = {finding.kind for finding in getattr(raised.value, "findings", ())}
    assert bool(kinds) == bool(fault.found) and any(fault.found in kind for kind in kinds or {""}), raised.value
