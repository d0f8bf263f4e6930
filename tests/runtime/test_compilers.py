"""What compilers say of every committed CUDA source: nvcc (registers, spills, shared memory, loads) and clang.

Compiled only, never run: nvcc for compute capability 7.5, clang as a second front end, nearer to CoreX's.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from pav2gen.plan import kernel as plan
from pav2gen.plan.occupancy import estimated_registers
from pav2gen.reading import spec_file as spec

from .conftest import GENERATED

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


#: CUDA_HOME, the usual place, and the NVIDIA wheels of this Python.
HOMES = [
    Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")),
    *Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*"),
]


@cache
def tool(name):
    """The path of a CUDA tool, or None."""
    places = [None, *(str(home / "bin") for home in HOMES)]
    return next((found for place in places if (found := shutil.which(name, path=place))), None)


def required(*found, what):
    """Skip where something was not found; on CI, which installs all of it, fail."""
    if None in found:
        pytest.fail(f"{what}: CI installs it") if os.environ.get("CI") else pytest.skip(f"{what}: not on this machine")


#: How many sources nvcc compiles at once: reading CUDA's headers takes as long as a kernel.
BATCH = 12


def including(sources, path):
    """A source at ``path`` that includes others; each has a namespace of its own."""
    path.write_text("".join(f'#include "{GENERATED / source}"\n' for source in sources))
    return path


def sources(symbols):
    return [KERNELS[symbol].variant.cuda_path for symbol in symbols]


@pytest.fixture(scope="module")
def cubins(tmp_path_factory):
    """symbol -> (cubin, what ptxas says), for compute capability 7.5. Kernels of a batch share both."""
    required(tool("nvcc"), what="nvcc")
    folder = tmp_path_factory.mktemp("cubins")

    def compile_some(first):
        batch = list(KERNELS)[first : first + BATCH]
        source, out = including(sources(batch), folder / f"{first}.cu"), folder / f"{first}.cubin"
        flags = [
            "-std=c++17",
            "-O3",
            "-arch=sm_75",
            "-cubin",
            "-Xptxas=-v",
            "-Werror=all-warnings",
            "-DPAV2_WARP_SIZE=32",
        ]
        done = subprocess.run([tool("nvcc"), *flags, str(source), "-o", str(out)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return dict.fromkeys(batch, (out, done.stderr))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(compile_some, range(0, len(KERNELS), BATCH))
        return {symbol: each for batch in found for symbol, each in batch.items()}


def mangled(symbol, kernel):
    """The end of the mangled name of a kernel in the namespace of a source."""
    return f"{symbol.removeprefix('pav2_')}{len(kernel)}{kernel}E"


def usages(said, kernel):
    """(registers, spilled bytes, shared bytes) that ptxas reports of each kernel with this part in its mangled name."""
    entries = re.split(r"Compiling entry function ", said)[1:]
    return [usage(entry) for entry in entries if kernel in entry.split("'")[1]]


def usage(entry):
    spills = sum(int(n) for n in re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", entry).groups())
    used = re.search(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?", entry)
    return int(used[1]), spills, int(used[2] or 0)


@pytest.mark.parametrize("symbol", KERNELS)
def test_nvcc_spills_nothing_and_uses_what_was_planned(cubins, symbol):
    cuda, said = KERNELS[symbol].cuda, cubins[symbol][1]
    ((registers, spilled, shared),) = usages(said, mangled(symbol, "partial_kernel"))
    assert spilled == 0
    assert shared == cuda.shared_bytes
    assert registers <= cuda.max_registers
    assert abs(registers - estimated_registers(KERNELS[symbol].variant, cuda.geometry)) <= 40


def test_the_reductions_spill_nothing(cubins):
    found = [each for said in {said for _, said in cubins.values()} for each in usages(said, "reduce_kernel")]
    assert len(found) >= len(cubins) // BATCH
    assert all(spilled == 0 and registers <= 64 for registers, spilled, _ in found)


@cache
def disassembled(cubin, path):
    """The machine code of a cubin. cuobjdump calls nvdisasm, which lies on ``path``."""
    command = [tool("cuobjdump"), "-sass", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}).stdout


@pytest.mark.parametrize("symbol", SHAPES.values())
def test_loads_are_as_wide_as_planned(cubins, symbol):
    required(tool("cuobjdump"), what="cuobjdump and nvdisasm")
    path = os.pathsep.join([str(Path(tool("cuobjdump")).parent), os.environ["PATH"]])  # it calls nvdisasm
    dump = disassembled(cubins[symbol][0], path)
    name = mangled(symbol, "partial_kernel")
    partial = next(part for part in dump.split("Function : ") if name in part.splitlines()[0])
    loads = re.findall(r"\bLDG\.E(?:\.CONSTANT)?(?:\.(64|128))?\S*", partial)
    widths = {int(width or 32) // 8 for width in loads}
    geometry = KERNELS[symbol].cuda.geometry
    planned = {4 * geometry.key_words, 4 * geometry.value_words}
    assert planned <= widths | {4}
    assert max(widths) == max(planned)
    assert "STL" not in partial and "LDL" not in partial  # no local memory


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
    home = next((home for home in HOMES if (home / "include" / "cuda.h").exists()), None)
    required(clang(), home, what="clang 16 or newer and CUDA's headers")
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
    check_syntax(including(sources(KERNELS), tmp_path / "all.cu"), side, warp_size)


def test_clang_takes_a_source_of_each_shape_alone(check_syntax):
    """Each includes all that it needs itself."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: check_syntax(GENERATED / source, "device", 64), sources(SHAPES.values())))
