"""What compilers say of every committed CUDA source: nvcc (registers, spills, shared memory, loads) and clang.

Compiled only, never run: nvcc for compute capability 7.5, clang as a second front end, nearer to CoreX's.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from pav2gen.bench.registers import ptxas_output
from pav2gen.bench.registers.ptxas_output import usage_of
from pav2gen.plan import kernel as plan
from pav2gen.plan.occupancy import estimated_registers
from pav2gen.reading import spec_file as spec
from pav2gen.runtime.building.toolchain import cuda_home, pip_folders

from . import nvcc
from .conftest import GENERATED
from .nvcc import mangled, usages

SPECS = [spec.load(path) for path in sorted(Path("specs").glob("*.yaml"))]
KERNELS = {v.symbol: plan.plan(v, s) for s in SPECS for v in spec.variants(s)}
#: One kernel for each shape of the code: storage, features, widths, steps, splits.
SHAPES = {
    (
        c.stored,
        v.alibi,
        v.blocksparse,
        g.key_words,
        g.value_words,
        c.steps > 1,
        c.blocks_per_group > 1,
        c.rows_may_end,
    ): symbol
    for symbol, p in KERNELS.items()
    for v, c, g in [(p.variant, p.cuda, p.cuda.geometry)]
}


#: How many sources nvcc compiles at once.
BATCH = 12


def sources(symbols):
    return [GENERATED / KERNELS[symbol].variant.cuda_path for symbol in symbols]


def wanted(config):
    """The kernels that nvcc compiles: with ``--full`` all, else one of each shape.

    Registers, spills and widths depend on the shape of the code, and within a shape little on the constants.
    """
    if config.getoption("--full", default=False):
        return list(KERNELS)
    return [symbol for symbol in KERNELS if symbol in SHAPES.values()]


def pytest_generate_tests(metafunc):
    if "symbol" in metafunc.fixturenames:
        metafunc.parametrize("symbol", wanted(metafunc.config))


@pytest.fixture(scope="module")
def cubins(request):
    """symbol -> what nvcc made of it. Kernels of a batch share it."""
    symbols = wanted(request.config)
    batches = [symbols[first : first + BATCH] for first in range(0, len(symbols), BATCH)]
    made = nvcc.compile_all([sources(batch) for batch in batches])
    return {symbol: cubin for batch, cubin in zip(batches, made) for symbol in batch}


def test_nvcc_spills_nothing_and_uses_what_was_planned(cubins, symbol):
    cuda = KERNELS[symbol].cuda
    ((registers, spilled, shared),) = usages(cubins[symbol].said, mangled(symbol, "partial_kernel"))
    assert spilled == 0
    assert shared == cuda.shared_bytes
    assert registers <= cuda.max_registers
    assert abs(registers - estimated_registers(KERNELS[symbol].variant, cuda.geometry)) <= 40


def test_pav2gen_reads_the_same_of_ptxas(cubins):
    for symbol, (_, said) in cubins.items():
        found = usage_of(plan.Kernel(KERNELS[symbol].variant, KERNELS[symbol]), ptxas_output.usages(said))
        ((registers, spilled, shared),) = usages(said, mangled(symbol, "partial_kernel"))
        assert found == ptxas_output.Usage(registers, spilled, shared)


def test_the_reductions_spill_nothing(cubins):
    found = [each for said in {cubin.said for cubin in cubins.values()} for each in usages(said, "reduce_kernel")]
    assert len(found) >= len(cubins) // BATCH
    assert all(spilled == 0 and registers <= 64 for registers, spilled, _ in found)


@cache
def disassembled(cubin):
    """The machine code of each kernel of a cubin, by its mangled name, with the source line of each instruction."""
    command = [nvcc.tool("nvdisasm"), "-c", "-gi", str(cubin)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sections = re.split(r"^\.text\.(\w+):\n", text, flags=re.MULTILINE)
    return dict(zip(sections[1::2], sections[2::2]))


def lines_of(source, function):
    """The numbers of the first and the last line of a function in a source."""
    text = source.read_text("utf-8")
    start = re.search(rf"^__device__ .*\b{function}\(", text, re.MULTILINE).start()
    return text.count("\n", 0, start) + 1, text.count("\n", 0, text.index("\n}\n", start)) + 2


#: The widths of loads from global memory by the type in the instruction, in bytes; 4 without one.
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def loads_in(code, source, function):
    """The widths of the loads from global memory that a function of a source contains, with those of inlined calls.

    Before an instruction stand its line and, one a line, the lines of the calls that it is inlined into.
    """
    first, last = lines_of(source, function)
    at, inside, above = re.compile(rf'/{re.escape(source.name)}", line (\d+)'), False, False
    for line in code.splitlines():
        if line.lstrip().startswith("//## "):
            inside = (above and inside) or any(first <= int(number) <= last for number in at.findall(line))
        elif inside and (load := re.search(r"\bLDG\.(\S+)", line)):
            yield next((WIDTHS[part] for part in load[1].split(".") if part in WIDTHS), 4)
        above = line.lstrip().startswith("//## ")


@pytest.mark.parametrize("shape", SHAPES.values())
def test_loads_are_as_wide_as_planned(cubins, shape):
    """Every load of keys, and every load of values, has the width of the plan."""
    nvcc.required(nvcc.tool("nvdisasm"), what="nvdisasm")
    kernel = mangled(shape, "partial_kernel")
    code = next(code for name, code in disassembled(cubins[shape].path).items() if kernel in name)
    geometry, source = KERNELS[shape].cuda.geometry, GENERATED / KERNELS[shape].variant.cuda_path
    assert set(loads_in(code, source, "score")) == {4 * geometry.key_words}
    assert set(loads_in(code, source, "load_tile")) == {4 * geometry.value_words}
    assert "STL" not in code and "LDL" not in code  # no local memory


@cache
def clang():
    """A clang that takes CUDA 13, 16 or newer, or None."""
    for name in ("clang++", *(f"clang++-{n}" for n in range(22, 15, -1))):
        if found := shutil.which(name):
            said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
            if int(re.search(r"version (\d+)", said)[1]) >= 16:
                return found
    return None


@pytest.fixture
def check_syntax(tmp_path):
    """Checks a source with clang, for one side and warp size; any warning is an error."""
    homes = [Path(cuda_home()), *(folder.parent for folder in pip_folders())]
    home = next((home for home in homes if (home / "include" / "cuda.h").exists()), None)
    nvcc.required(clang(), home, what="clang 16 or newer and CUDA's headers")
    for header in ("texture_fetch_functions.h", "curand_mtgp32_kernel.h"):  # clang asks for what CUDA 13 has no more
        (tmp_path / header).touch()
    flags = ["-x", "cuda", "-std=c++17", "--cuda-gpu-arch=sm_75", f"--cuda-path={home}", "-nocudalib", "-fsyntax-only"]
    flags += ["--no-cuda-version-check", "-Wno-unknown-cuda-version", "-isystem", str(tmp_path)]
    flags += ["-Wall", "-Werror", "-Wno-unused-command-line-argument"]

    def check(source, side, warp_size):
        command = [clang(), *flags, f"--cuda-{side}-only", f"-DPAV2_WARP_SIZE={warp_size}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{source} {side}\n{done.stderr[:2000]}"

    return check


@pytest.mark.parametrize("side", ["device", "host"])
@pytest.mark.parametrize("warp_size", [64, 32])
def test_clang_takes_every_source(check_syntax, tmp_path, warp_size, side):
    (tmp_path / "all.cu").write_text(nvcc.including(sources(KERNELS)))
    check_syntax(tmp_path / "all.cu", side, warp_size)


def alone(config, sources):
    """The sources that clang compiles alone: with ``--full`` all, else one of each list of includes.

    Only what a source includes can be missing in it.
    """
    if config.getoption("--full", default=False):
        return list(sources)
    return list(
        {tuple(re.findall("^#include .*", source.read_text(), re.MULTILINE)): source for source in sources}.values()
    )


def test_clang_takes_a_source_of_each_shape_alone(request, check_syntax):
    """Each includes all that it needs itself."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(
            pool.map(lambda source: check_syntax(source, "device", 64), alone(request.config, sources(SHAPES.values())))
        )
