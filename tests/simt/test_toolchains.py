"""The test kernels are real CUDA, and the runtime is no matter of one compiler or processor."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pav2gen.runtime import simt
from pav2gen.runtime.simt.toolchain import INCLUDE

from .helpers import HERE, call, kinds, run

nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")


@nvcc
@pytest.mark.parametrize(
    "source, arch", [("patterns", 75), ("faults", 75), ("storage", 75), ("races", 75), ("host", 75), ("builtins", 80)]
)
def test_nvcc_compiles_the_same_sources(tmp_path, source, arch):
    """builtins.cu needs sm_80: warp reductions and bfloat16 arithmetic."""
    argv = ["nvcc", f"-arch=sm_{arch}", "-cubin", "-DPAV2_WARP_SIZE=32", "-o", str(tmp_path / "out.cubin"),
            str(HERE / f"{source}.cu")]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


REFERENCE = """
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
int main(int, char** argv) {
    static unsigned short codes[65536], narrowed[2][65536];
    static float halves[65536], bfloats[65536], floats[65536];
    for (int i = 0; i < 65536; i++) {
        codes[i] = i;
        halves[i] = __half2float(__ushort_as_half(i));
        bfloats[i] = __bfloat162float(__ushort_as_bfloat16(i));
        union { unsigned u; float f; } u = {i * 65537u ^ 0x1234u};
        floats[i] = u.f;
        narrowed[0][i] = __half_as_ushort(__float2half(floats[i]));
        narrowed[1][i] = __bfloat16_as_ushort(__float2bfloat16(floats[i]));
    }
    FILE* file = fopen(argv[1], "wb");
    fwrite(halves, 4, 65536, file), fwrite(bfloats, 4, 65536, file), fwrite(floats, 4, 65536, file);
    return fwrite(narrowed, 2, 2 * 65536, file), fclose(file);
}
"""


@nvcc
def test_conversions_have_the_bits_of_nvidias_own_headers(tmp_path, library):
    (tmp_path / "reference.cu").write_text(REFERENCE)
    subprocess.run(["nvcc", "-o", "reference", "reference.cu"], cwd=tmp_path, check=True, capture_output=True)
    subprocess.run(["./reference", "out"], cwd=tmp_path, check=True)
    raw = (tmp_path / "out").read_bytes()
    n = 65536 * 4
    wide = [np.frombuffer(raw[i * n : (i + 1) * n], np.uint32) for i in range(2)]
    floats = np.frombuffer(raw[2 * n : 3 * n], np.float32)
    narrowed = np.frombuffer(raw[3 * n :], np.uint16).reshape(2, 65536)
    codes = np.arange(65536, dtype=np.uint16)
    for bfloat in (0, 1):
        out, integers = np.zeros(65536, np.uint32), np.zeros((65536, 4), np.int32)
        assert call(library(64, False), "run_widen", bfloat, out, integers, codes, 65536) == 0
        assert (out == wide[bfloat]).all()
        short = np.zeros((65536, 4), np.uint16)
        assert call(library(64, False), "run_narrow", bfloat, short, floats.copy(), 65536) == 0
        assert (short[:, 0] == narrowed[bfloat]).all()


def newest(prefix: str) -> str | None:
    found = [p for v in range(30, 9, -1) if (p := shutil.which(f"{prefix}-{v}"))]
    return shutil.which(prefix) or (found[0] if found else None)


@pytest.mark.skipif(newest("clang++") is None, reason="clang++ is not installed")
def test_the_fast_build_by_clang(cache):
    sources = [HERE / name for name in ("storage.cu", "patterns.cu", "faults.cu")]
    program = simt.build(sources, warp_size=64, cache_dir=cache, compiler=newest("clang++"))
    rows, vector = np.ones((4, 512), np.float16), np.ones(512, np.float16)
    out = np.zeros(4, np.float32)
    code, report = run(program, "run_dots", out, rows, vector, 4, lane_order="random")
    assert (code, kinds(report), out.tolist()) == (0, [], [512.0] * 4)
    assert kinds(run(program, "divergent_barriers", np.zeros(64, np.float32), 1)[1]) == ["barrier-divergence"]
    assert kinds(run(program, "wild_load", np.zeros(4, np.int32), np.zeros(32, np.int32), 1 << 40)[1]) == ["crash"]


ARM = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")


@pytest.mark.skipif(
    not all(ARM), reason="no cross compiler and emulator for AArch64 (g++-aarch64-linux-gnu, qemu-user)"
)
def test_the_switch_for_aarch64(tmp_path: Path, cache: Path):
    source = tmp_path / "arm.cu"
    source.write_text("""
        #include <cstdio>
        __global__ void sum(float* out, const float* in) {
            __shared__ float tile[128];
            tile[threadIdx.x] = in[threadIdx.x];
            __syncthreads();
            double v = tile[127 - threadIdx.x];
            for (int i = 32; i; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
            out[threadIdx.x] = v;
        }
        int main() {
            float in[128], result[128], *device, *out;
            for (int i = 0; i < 128; i++) in[i] = i;
            cudaMalloc(&device, sizeof in), cudaMalloc(&out, sizeof in);
            cudaMemcpy(device, in, sizeof in, cudaMemcpyHostToDevice);
            sum<<<3, 128>>>(out, device);
            cudaMemcpy(result, out, sizeof in, cudaMemcpyDeviceToHost);
            printf("%g %g %d\\n", result[0], result[127], cudaGetLastError());
        }
    """)
    plan = simt.compile_commands([source], tmp_path / "arm", warp_size=64, cache_dir=cache, compiler=ARM[0],
                                 program=True, native=False)  # fmt: skip
    simt.run_plan(plan)
    argv = [str(ARM[1]), "-L", "/usr/aarch64-linux-gnu", str(plan.out)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout == "6112 2016 0\n", done.stderr


def test_every_header_stands_alone():
    """Each of the CUDA headers may be the only one that a source includes."""
    compiler = simt.find_compiler().path
    for header in sorted(INCLUDE.glob("*.h")):
        argv = [compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", f"-I{INCLUDE}", "-x", "c++", str(header)]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0 and "warning: #pragma once in main file" in done.stderr, done.stderr
        assert done.stderr.count("warning:") == 1, done.stderr
