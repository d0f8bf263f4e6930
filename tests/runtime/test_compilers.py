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


@pytest.fixture(scope="module")
def cubins(tmp_path_factory):
    """symbol -> (cubin, what ptxas says), for compute capability 7.5."""
    required(tool("nvcc"), what="nvcc")
    folder = tmp_path_factory.mktemp("cubins")

    def compile_one(symbol):
        source, out = GENERATED / KERNELS[symbol].variant.cuda_path, folder / f"{symbol}.cubin"
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
        return symbol, (out, done.stderr)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(pool.map(compile_one, KERNELS))


def usage(said, kernel):
    """(registers, spilled bytes, bytes of shared memory) that ptxas reports of a kernel."""
    entry = said[re.search(rf"Compiling entry function '\S*{kernel}\S*'", said).end() :]
    spills = sum(int(n) for n in re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", entry).groups())
    used = re.search(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?", entry)
    return int(used[1]), spills, int(used[2] or 0)


@pytest.mark.parametrize("symbol", KERNELS)
def test_nvcc_spills_nothing_and_uses_what_was_planned(cubins, symbol):
    cuda, said = KERNELS[symbol].cuda, cubins[symbol][1]
    registers, spilled, shared = usage(said, "partial_kernel")
    assert spilled == 0
    assert shared == cuda.shared_bytes
    assert registers <= cuda.max_registers
    assert abs(registers - estimated_registers(KERNELS[symbol].variant, cuda.geometry)) <= 40
    registers, spilled, _ = usage(said, "reduce_kernel")
    assert spilled == 0 and registers <= 64


@pytest.mark.parametrize("symbol", SHAPES.values())
def test_loads_are_as_wide_as_planned(cubins, symbol):
    required(tool("cuobjdump"), what="cuobjdump and nvdisasm")
    path = os.pathsep.join([str(Path(tool("cuobjdump")).parent), os.environ["PATH"]])  # it calls nvdisasm
    command = [tool("cuobjdump"), "-sass", str(cubins[symbol][0])]
    dump = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path})
    partial = next(part for part in dump.stdout.split("Function : ") if "partial_kernel" in part.splitlines()[0])
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


@pytest.mark.parametrize("warp_size", [64, 32])
def test_clang_takes_every_source(tmp_path, warp_size):
    home = next((home for home in HOMES if (home / "include" / "cuda.h").exists()), None)
    required(clang(), home, what="clang 16 or newer and CUDA's headers")
    for header in ("texture_fetch_functions.h", "curand_mtgp32_kernel.h"):  # clang asks for what CUDA 13 has no more
        (tmp_path / header).touch()
    flags = ["-x", "cuda", "-std=c++17", "--cuda-gpu-arch=sm_75", f"--cuda-path={home}", "-nocudalib", "-fsyntax-only"]
    flags += ["--no-cuda-version-check", "-Wno-unknown-cuda-version", "-isystem", str(tmp_path)]
    flags += ["-Wall", "-Werror", "-Wno-unused-command-line-argument", f"-DPAV2_WARP_SIZE={warp_size}"]

    def check_one(job):
        side, symbol = job
        source = GENERATED / KERNELS[symbol].variant.cuda_path
        return subprocess.run([clang(), *flags, side, str(source)], capture_output=True, text=True)

    jobs = [(side, symbol) for side in ("--cuda-device-only", "--cuda-host-only") for symbol in SHAPES.values()]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for job, done in zip(jobs, pool.map(check_one, jobs)):
            assert done.returncode == 0, f"{job}\n{done.stderr[:2000]}"
