"""Faults planted one by one in rendered kernels and their runtime: the generated tests must catch every one.

Each mutant is a package of its own with one changed file; one pytest run takes them all.
"""

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest

from pav2gen.commands.build import BuildOptions, build

SPEC = """
schema: 1
name: {name}
target: bi-v100
model: {{num_heads: 6, num_kv_heads: 2, max_seq_len: 4096}}
axes: {{head_size: 64, gqa_ratio: 3, partition_size: 64, kv_cache_dtype: {kv}}}
features: {{alibi: {alibi}, blocksparse: {sparse}}}
"""
FAMILIES = {
    "dense": dict(kv="auto", alibi="false", sparse="false"),
    "biased": dict(kv="auto", alibi="true", sparse="false"),
    "stored8": dict(kv="fp8_e4m3", alibi="false", sparse="false"),
    "sparse": dict(kv="auto", alibi="false", sparse="true"),
}


@dataclass(frozen=True)
class Fault:
    """One change: in ``file`` (``kernel`` is the PyTorch kernel of ``family``), ``old`` becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    family: str = "dense"


KERNEL, CALL, STATE, OP = "kernel", "runtime/call.py", "runtime/state.py", "runtime/op.py"

FAULTS = [
    Fault("partials not divided by z", CALL, "torch.div(o, z.unsqueeze(-1), out=", "torch.mul(o, 1.0, out="),
    Fault("output divided by z twice", STATE, "state.o.div_(state.z", "state.o.div_(state.z.unsqueeze(-1)).div_(state.z"),
    Fault("output not divided by z", STATE, "state.o.div_(state.z.unsqueeze(-1))", "state.o"),
    Fault("mask one token late", CALL, "hidden = past >= 0", "hidden = past > 0"),
    Fault("mask one token early", CALL, "hidden = past >= 0", "hidden = past >= -1"),
    Fault("wrong page", CALL, "return Segment(rows, parts, lens, past", "table = table.roll(1, 1)\n    return Segment(rows, parts, lens, past"),
    Fault("table followed past the end", CALL, "table.masked_fill_(hidden[:, ::page], 0)", "pass"),
    Fault("lengths not clamped", CALL, "return call.seq_lens.clamp(", "return call.seq_lens.clone() if page else call.seq_lens.clamp("),
    Fault("scale forgotten", KERNEL, ".mul_(call.scale)", ".mul_(1.0)"),
    Fault("wrong head of the group", KERNEL, ".copy_(query.unsqueeze(1))", ".copy_(query.flip(1).unsqueeze(1))"),
    Fault("stride of the query ignored", KERNEL, "call.query[rows]", "call.query.as_strided(call.query.shape, (call.query[0].numel(), 64, 1))[rows]"),
    Fault("tail of the scores not masked", KERNEL, "scores.masked_fill_(part.hidden", "scores.clone().masked_fill_(part.hidden"),
    Fault("tail of the values not masked", KERNEL, ".bitwise_and_(", ".bitwise_and("),
    Fault("-inf minus -inf in a partition", KERNEL, "scores.sub_(m.clamp_min(LOWEST)", "scores.sub_(m.clamp_min(float('-inf'))"),
    Fault("-inf minus -inf in the reduction", STATE, "top.clamp_min(LOWEST)", "top.clamp_min(-float('inf'))"),
    Fault("-inf minus -inf in a merge", STATE, "floor = m.clamp_min(LOWEST)", "floor = m.clamp_min(-float('inf'))"),
    Fault("merged sums not rescaled", STATE, "a.z.mul_(wa)", "a.z.mul_(1.0)"),
    Fault("merged outputs not rescaled", STATE, "a.o.mul_(wa.unsqueeze(-1))", "a.o.mul_(1.0)"),
    Fault("reduction forgets the weights", STATE, "o.mul_(weights.unsqueeze(-1))", "o.mul_(1.0)"),
    Fault("zeros forgotten where nothing is attended", STATE, ".masked_fill_((state.z == 0).unsqueeze(-1), 0.0)", ".mul_(1.0)"),
    Fault("stale chunk", KERNEL, "0, blocks.flatten(), out=pages)", "0, part.pages[: len(blocks)].flatten(), out=pages)"),
    Fault("weights in the order of heads", KERNEL, ".permute(0, 3, 1, 2, 4))", ".permute(0, 3, 1, 2, 4).flip(1))"),
    Fault("a host read", KERNEL, "seq_lens = clamped_seq_lens(call, 16)", "seq_lens = clamped_seq_lens(call, 16)\n    seq_lens.max().item()"),
    Fault("a call more than planned", KERNEL, "m = scores.amax(-1)", "m = scores.clone().amax(-1)"),
    Fault("a copy of all keys more than planned", KERNEL, "torch.bmm(queries.flatten", "keys = keys.contiguous().clone()\n        torch.bmm(queries.flatten"),
    Fault("scratch without room written", OP, "check.usable_scratch(call.scratch, partitions)", "call.scratch"),
    Fault("scratch beyond the partitions left", OP, "call.scratch.exp_sums[:, :, partitions:].zero_()", "pass"),
    Fault("max_logits of the last partition lost", CALL, "max_logits.copy_(m.transpose(1, 2))", "max_logits[:, :, :-1].copy_(m.transpose(1, 2)[:, :, :-1])"),
    Fault("slopes on the absolute position", KERNEL, "part.past.add(1)", "part.past.add(1).neg()", "biased"),
    Fault("slopes one token off", KERNEL, "part.past.add(1)", "part.past.add(0)", "biased"),
    Fault("slopes of another head", KERNEL, "call.alibi_slopes.view(", "call.alibi_slopes.flip(0).view(", "biased"),
    Fault("k_scale forgotten", KERNEL, "query.mul_(call.k_scale)", "query.mul_(1.0)", "stored8"),
    Fault("v_scale forgotten", KERNEL, "sums.mul_(call.v_scale)", "sums.mul_(1.0)", "stored8"),
    Fault("scales swapped", KERNEL, "query.mul_(call.k_scale)", "query.mul_(call.v_scale)", "stored8"),
    Fault("the other fp8 format", KERNEL, 'fp8_table("fp8_e4m3"', 'fp8_table("fp8_e5m2"', "stored8"),
    Fault("subnormal codes flushed", "runtime/fp8.py", "magnitude = (codes & 0x7F) << 7", "magnitude = ((codes & 0x7F) * ((codes & 0x78) > 0)) << 7", "stored8"),
    Fault("one local block too few", "runtime/sparse.py", "distant = block <= ", "distant = block <= 1 + ", "sparse"),
    Fault("strides start a block early", "runtime/sparse.py", ".mul_(step).add_(1)", ".mul_(step).add_(0)", "sparse"),
    Fault("rank ignored", "runtime/sparse.py", "+ rank * heads", "+ 0 * heads", "sparse"),
    Fault("negative step taken for a positive one", "runtime/sparse.py", "if step >= 0:", "if step or not step:", "sparse"),
]  # fmt: skip


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """The number of failed tests of each mutant, and of the healthy package."""
    root = tmp_path_factory.mktemp("mutants")
    specs = []
    for name, options in FAMILIES.items():
        specs.append(root / f"{name}.yaml")
        specs[-1].write_text(SPEC.format(name=name, **options))
    build(specs, BuildOptions(root / "healthy"))
    for number, fault in enumerate(FAULTS):
        plant(fault, root / "healthy", root / f"mutant{number}")
    report = root / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--tb=no"]
    result = subprocess.run([*command, f"--junitxml={report}", str(root)], cwd=root, capture_output=True, text=True)
    assert result.returncode in (0, 1), result.stdout[-2000:] + result.stderr[-2000:]
    return count_failures(report)


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


def count_failures(report):
    """folder name -> number of its tests that failed."""
    failures = {"healthy": 0, **{f"mutant{number}": 0 for number in range(len(FAULTS))}}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        folder = case.get("classname").split(".")[0]
        failures[folder] += case.find("failure") is not None or case.find("error") is not None
    return failures


def test_the_healthy_package_passes(verdicts):
    assert verdicts["healthy"] == 0


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_caught(verdicts, number):
    assert verdicts[f"mutant{number}"] > 0, f"no generated test notices: {FAULTS[number].name}"


def test_the_families_cover_every_template_branch():
    assert {fault.family for fault in FAULTS} == set(FAMILIES)
    assert Path(__file__).name == "test_mutations.py"
