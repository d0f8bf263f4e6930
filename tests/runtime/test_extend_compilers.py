"""What compilers say of CUDA extend kernels: nvcc (registers, spills, shared memory, loads) and clang. They are never
run.
"""

import concurrent.futures
import os
import re
import subprocess
from pathlib import Path

import pytest

from pav2gen.commands.build import BuildOptions, build
from pav2gen.family.spec import points
from pav2gen.family.variant import ExtendVariant
from pav2gen.plan.extend_plan import plan_extend
from pav2gen.reading import spec_file

from . import nvcc
from .conftest import GENERATED, settle
from .nvcc import mangled, usages
from .test_compilers import alone, check_syntax

__all__ = ["check_syntax"]  # a fixture

#: How many sources nvcc compiles at once.
BATCH = 6

SPEC = """
schema: 1
name: {name}
target: {target}
model: {{num_heads: {heads}, num_kv_heads: 2, max_seq_len: 32768}}
axes:
  {{head_size: {size}, gqa_ratio: {ratio}, partition_size: 512, block_size: {page}, dtype: {dtype},
   kv_cache_dtype: {kv}}}
features: {features}
{defined}
operators: [decode, extend]
backends: [cuda]
"""
PLAIN = dict(
    target="bi-v100", size=128, ratio=4, page=16, dtype="float16", kv="auto", features="{}", defined=""
)  # fmt: skip
OWN = """
modifications:
  own: {score: "s + bias[h] * tanh(0.1 * (k - q))", mask: "k // 64 == q // 64", tensors: {bias: [heads]}}
"""
ALL = "{alibi: true, softcap: 30.0, sliding_window: 512, sinks: true, modification: own}"
#: A kernel for each shape of the code: storage, features, widths, splits, ends of heads and of loads.
FAMILIES = {
    "wide": {**PLAIN, "size": 256, "ratio": 6},
    "wide8": {**PLAIN, "size": 256, "ratio": 6, "kv": "fp8_e4m3"},
    "wide_int8": {**PLAIN, "size": 256, "ratio": 3, "kv": "int8"},
    "nvidia": {**PLAIN, "size": 256, "ratio": 6, "target": "sm_75"},
    "nvidia_wide": {**PLAIN, "target": "sm_90"},
    "narrow": {**PLAIN, "size": 256, "ratio": 6, "target": "mr-v100"},
    "long_pages": {**PLAIN, "size": 256, "ratio": 6, "page": 64},
    "int8_192": {**PLAIN, "size": 192, "page": 32, "kv": "int8"},
    "single": {**PLAIN, "ratio": 1, "page": 32},
    "float32": {**PLAIN, "dtype": "float32"},
    "bfloat16": {**PLAIN, "dtype": "bfloat16", "ratio": 8},
    "split": {**PLAIN, "ratio": 71, "size": 64},
    "odd": {**PLAIN, "size": 120, "page": 8, "ratio": 5},
    "large": {**PLAIN, "size": 512, "ratio": 8, "page": 64},
    "all": {**PLAIN, "size": 256, "ratio": 2, "features": ALL, "defined": OWN},
}


SPECS = [spec_file.load(path) for path in sorted(Path("specs").glob("*.yaml"))]
#: Name -> the plan of each extend kernel of the committed specs.
COMMITTED = {v.symbol: plan_extend(v, spec) for spec in SPECS for v in points(spec) if isinstance(v, ExtendVariant)}


def wanted(config):
    """The names of the kernels that nvcc compiles: those of ``FAMILIES``, and with ``--full`` all committed ones.

    Registers, spills and widths depend on the shape of the code, and the families have every shape.
    """
    return [*FAMILIES, *COMMITTED] if config.getoption("--full", default=False) else list(FAMILIES)


def pytest_generate_tests(metafunc):
    if "kernel" in metafunc.fixturenames:
        metafunc.parametrize("kernel", wanted(metafunc.config))


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Name -> (the source of an extend kernel, the kernel's plan)."""
    folder = tmp_path_factory.mktemp("extend_sources")
    variants = {}
    for name, options in FAMILIES.items():
        path = folder / f"{name}.yaml"
        path.write_text(SPEC.format(name=name, heads=2 * options["ratio"], **options))
        spec = spec_file.load(path)
        (variants[name],) = ((v, spec) for v in points(spec) if isinstance(v, ExtendVariant))
    build([folder / f"{name}.yaml" for name in FAMILIES], BuildOptions(folder / "package"))
    root = settle(folder / "package")
    found = {name: (root / v.cuda_path, plan_extend(v, spec)) for name, (v, spec) in variants.items()}
    found |= {name: (GENERATED / plan.variant.cuda_path, plan) for name, plan in COMMITTED.items()}
    return found


@pytest.fixture(scope="module")
def cubins(request, plans):
    """Name -> what nvcc made of it. Kernels of a batch share it."""
    names = wanted(request.config)
    # the headers of the package of FAMILIES and those of the committed one define the same names
    batches = [
        some[first : first + BATCH]
        for some in ([name for name in names if name in FAMILIES], [name for name in names if name in COMMITTED])
        for first in range(0, len(some), BATCH)
    ]
    made = nvcc.compile_all([[plans[name][0] for name in batch] for batch in batches])
    return {name: cubin for batch, cubin in zip(batches, made) for name in batch}


def test_nothing_spills_and_shared_memory_is_as_planned(plans, cubins, kernel):
    plan = plans[kernel][1]
    ((registers, spilled, shared),) = usages(cubins[kernel].said, mangled(plan.variant.symbol, "partial_kernel"))
    assert (spilled, shared) == (0, plan.cuda.shared_bytes)
    assert registers <= plan.cuda.max_registers


def test_the_reductions_spill_nothing(cubins):
    found = [
        each for said in {cubin.said for cubin in cubins.values()} for each in usages(said, "extend_reduce_kernel")
    ]
    assert len(found) >= len(cubins) // BATCH
    assert all(spilled == 0 and registers <= 64 for registers, spilled, _ in found)


@pytest.mark.parametrize("name", ["wide", "nvidia", "narrow", "float32"])
def test_loads_are_as_wide_as_planned(plans, cubins, name):
    nvcc.required(nvcc.tool("cuobjdump"), what="cuobjdump and nvdisasm")
    path = os.pathsep.join([str(Path(nvcc.tool("cuobjdump")).parent), os.environ["PATH"]])  # it calls nvdisasm
    command = [nvcc.tool("cuobjdump"), "-sass", str(cubins[name].path)]
    environment = {**os.environ, "PATH": path}
    dump = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    kernel = mangled(plans[name][1].variant.symbol, "partial_kernel")
    partial = next(part for part in dump.split("Function : ") if kernel in part.splitlines()[0])
    widths = {int(width or 32) // 8 for width in re.findall(r"\bLDG\.E(?:\.CONSTANT)?(?:\.(64|128))?\S*", partial)}
    assert max(widths) == 4 * plans[name][1].cuda.geometry.load_words
    assert "STL" not in partial and "LDL" not in partial  # no local memory


@pytest.mark.parametrize("side", ["device", "host"])
@pytest.mark.parametrize("warp_size", [64, 32])
def test_clang_takes_every_committed_source(check_syntax, tmp_path, warp_size, side):
    sources = [GENERATED / plan.variant.cuda_path for plan in COMMITTED.values()]
    assert sources
    (tmp_path / "all.cu").write_text(nvcc.including(sources))
    check_syntax(tmp_path / "all.cu", side, warp_size)


def test_clang_takes_a_source_of_each_shape_alone(request, check_syntax, plans):
    """Each includes all that it needs itself."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        chosen = alone(request.config, [plans[name][0] for name in FAMILIES])
        list(pool.map(lambda source: check_syntax(source, "device", 64), chosen))
