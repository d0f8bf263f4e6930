"""Building, caching, loading, registering: the Python side."""

from __future__ import annotations

import array
import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pav2gen.runtime import simt
from pav2gen.runtime.simt import symbols, toolchain

from .helpers import HERE, call, kinds, run

SCALE = """
#include <cuda_runtime.h>
#include "factor.h"
__global__ void scale(float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= FACTOR;
}
extern "C" __attribute__((visibility("default"))) int launch(float* x, int n) {
    scale<<<(n + 63) / 64, 64>>>(x, n);
    return cudaGetLastError();
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "factor.h").write_text("#define FACTOR 2.0f\n")
    (tmp_path / "scale.cu").write_text(SCALE)
    return tmp_path / "scale.cu"


def scaled(program: simt.Program) -> float:
    x = np.ones(100, np.float32)
    assert call(program, "launch", x, 100) == 0
    assert (x == x[0]).all()
    return float(x[0])


def test_what_is_built_is_kept_until_something_it_is_made_of_changes(source, cache):
    options = {"include": [source.parent / "include"], "cache_dir": cache, "warp_size": 64}
    first = simt.build([source], **options)
    made = first.path.stat().st_mtime_ns
    assert scaled(first) == 2.0
    again = simt.build([source], **options)
    assert again.path == first.path and again.path.stat().st_mtime_ns == made
    (source.parent / "include" / "factor.h").write_text("#define FACTOR 3.0f\n")
    other = simt.build([source], **options)
    assert other.path != first.path and scaled(other) == 3.0
    source.write_text(SCALE.replace("*= FACTOR", "*= FACTOR + EXTRA"))
    third = simt.build([source], defines={"EXTRA": 4}, **options)
    assert third.path != other.path and scaled(third) == 7.0
    assert not list(cache.glob(".making*/scale-*"))


def test_packages_share_the_compiled_runtime(source, cache, tmp_path, monkeypatch):
    """The runtime's object is named by the content of its headers, not by the folder in which they lie."""

    def runtime_of(include):
        for module in (toolchain, sys.modules[simt.CompileError.__module__]):
            monkeypatch.setattr(module, "INCLUDE", include)
        monkeypatch.setattr(toolchain, "RUNTIME_SOURCE", include / "simt.cpp")
        first = simt.compile_commands([source], None, include=[source.parent / "include"], cache_dir=cache).compile[0]
        assert str(include / "simt.cpp") in first.argv
        return first.output

    own, copy = toolchain.INCLUDE, tmp_path / "copy" / "include"
    shutil.copytree(own, copy)
    assert runtime_of(copy) == runtime_of(own)
    (copy / "simt.cpp").write_text((own / "simt.cpp").read_text() + "int another;\n")
    assert runtime_of(copy) != runtime_of(own)


def test_a_compile_error_has_the_compilers_words_and_the_command(source, cache):
    (source.parent / "include" / "factor.h").write_text("#define FACTOR unknown_name\n")
    with pytest.raises(simt.CompileError) as caught:
        simt.build([source], include=[source.parent / "include"], cache_dir=cache)
    error = caught.value
    assert "unknown_name" in error.output and f"{source}:6" in error.output
    assert str(error).endswith(f"to repeat: {error.command}") and "-DPAV2_WARP_SIZE=64" in str(error.command)
    assert subprocess.run(str(error.command), shell=True, capture_output=True).returncode != 0
    with pytest.raises(simt.CompileError, match=r"nowhere\.cu: No such file"):
        simt.build([source.parent / "nowhere.cu"], cache_dir=cache)


def test_an_untyped_launch_does_not_compile(tmp_path, cache):
    path = tmp_path / "untyped.cu"
    launch = "cudaLaunchKernel((const void*)&k, dim3(1), dim3(1), a, 0, 0)"
    path.write_text(f"__global__ void k() {{}}\nint f(void** a) {{ return {launch}; }}\n")
    with pytest.raises(simt.CompileError, match="deleted function"):
        simt.build([path], cache_dir=cache)


def test_a_checked_source_that_does_not_compile(tmp_path, cache):
    path = tmp_path / "broken.cu"
    path.write_text("int f() { return x; }\n")
    with pytest.raises(simt.CompileError, match=r"broken\.cu:1"):
        simt.build([path], cache_dir=cache, checked=True)


def test_an_undefined_function_is_an_error_of_the_build(tmp_path, cache):
    path = tmp_path / "undefined.cu"
    path.write_text('int elsewhere();\nextern "C" int f() { return elsewhere(); }\n')
    with pytest.raises(simt.CompileError, match="elsewhere"):
        simt.build([path], cache_dir=cache)


def test_no_compiler_and_the_wrong_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMT_CXX", "no-such-compiler")
    with pytest.raises(simt.ToolchainError, match="no-such-compiler"):
        simt.find_compiler()
    monkeypatch.setenv("SIMT_CXX", "false")
    with pytest.raises(simt.ToolchainError, match="--version exits with 1"):
        simt.find_compiler()
    fake = tmp_path / "clang++"
    fake.write_text("#!/bin/sh\necho clang version 99\n")
    fake.chmod(0o755)
    monkeypatch.setenv("SIMT_CXX", str(fake))
    assert simt.find_compiler().is_clang
    with pytest.raises(simt.ToolchainError, match="needs g\\+\\+"):
        simt.find_compiler(checked=True)


@pytest.mark.parametrize("size", [16, 33, 128])
def test_warp_sizes_that_there_are(source, cache, size):
    with pytest.raises(ValueError, match="32 or 64"):
        simt.build([source], warp_size=size, cache_dir=cache)


def test_objects_of_different_kinds_do_not_link(source, cache):
    """A kernel of warp size 32 with a runtime of 64 would compute nonsense: it is an undefined symbol."""
    options = {"include": [source.parent / "include"], "cache_dir": cache}
    plan = simt.compile_commands([source], source.parent / "mixed.so", warp_size=64, **options)
    other = simt.compile_commands([source], source.parent / "mixed.so", warp_size=32, **options)
    for command in (plan.compile[0], other.compile[1]):
        if not command.output.exists():
            simt.run_command(command)
    mixed = simt.Plan((plan.compile[0], other.compile[1]), plan.out, plan.compiler, 64, False)
    with pytest.raises(simt.CompileError, match="warp32_fast"):
        simt.run_command(mixed.link())


def test_a_builder_of_ones_own(source, cache):
    """The commands are plain ones: run by hand, they make a library that can be attached to."""
    out = source.parent / "own.so"
    plan = simt.compile_commands([source, HERE / "storage.cu"], out, warp_size=32, cache_dir=cache,
                                 include=[source.parent / "include"])  # fmt: skip
    assert len(plan.compile) == 3 and plan.compile[0].argv[-3].endswith("simt.cpp")
    for command in plan.compile:
        subprocess.run(command.argv, check=True)
    subprocess.run(plan.link().argv, check=True)
    program = simt.attach(ctypes.CDLL(str(out)))
    assert (program.warp_size, program.checked, scaled(program)) == (32, False, 2.0)
    assert simt.attach(out).path == out


def test_what_is_no_library_of_ours():
    with pytest.raises(ValueError, match="not built with the simt runtime"):
        simt.attach(ctypes.CDLL(None))


def test_a_function_that_is_not_exported(fast):
    with pytest.raises(AttributeError, match="exports no 'missing'"):
        fast.fn("missing")


def test_all_kinds_of_libraries_work_in_one_process(library):
    """Two warp sizes and two builds, in turn: nothing of one is seen by another."""
    programs = [library(w, c) for w in (64, 32) for c in (False, True)]
    for _ in range(2):
        for program in programs:
            out = np.zeros(program.warp_size, np.float32)
            _, report = run(program, "mask_of_32", out)
            assert (kinds(report), report.warp_size) == ([], program.warp_size)
            assert out[1] == 1 + program.warp_size // 2
            assert report.totals.launches == 1


# ---- registering buffers


def test_everything_that_has_memory(checked):
    torch = pytest.importorskip("torch")
    out, n = np.zeros(32, np.float32), 132
    for memory in (
        np.ones(n, np.float32),
        torch.ones(n),
        array.array("f", [1.0] * n),
        (ctypes.c_float * n)(*[1.0] * n),
    ):
        with checked.session() as session:
            session.buffer("out", out)
            session.buffer("in", memory, writable=False)
            address, size = simt.program.address_of(memory)
            assert size == 4 * n
            assert checked.fn("misaligned_load")(out.ctypes.data_as(ctypes.c_void_p), ctypes.c_void_p(address), 0) in (
                0,
                716,
            )
        assert session.report.buffers["in"].bytes == 4 * n
    data = np.ones(68, np.float32)
    with checked.session() as session:
        session.buffer("in", data.ctypes.data, 128)
        session.buffer("part", data.ctypes.data + 128, nbytes=144)
        session.buffer("empty", np.zeros(0))
    assert [b.bytes for b in session.report.buffers.values()] == [128, 144]


@pytest.mark.parametrize(
    "memory, error, words",
    [
        (5, ValueError, "needs its size"),
        ("text", TypeError, "not str"),
        (np.zeros((4, 4))[:, 1], ValueError, "not contiguous"),
        (b"bytes", ValueError, "read-only"),
    ],
)
def test_memory_that_cannot_be_registered(checked, memory, error, words):
    with checked.session() as session, pytest.raises(error, match=words):
        session.buffer("x", memory)


def test_buffers_have_one_name_and_do_not_overlap(checked):
    data = np.zeros(64, np.float32)
    with checked.session() as session:
        session.buffer("whole", data)
        with pytest.raises(ValueError, match="registered already"):
            session.buffer("whole", np.zeros(4))
        for part in (data[:4], data[60:], data[10:20]):
            with pytest.raises(ValueError, match="'part' overlaps buffer 'whole'"):
                session.buffer("part", part)
    with pytest.raises(ValueError, match="closed"):
        session.buffer("late", data)


def test_memory_of_the_program_outlives_a_session(checked):
    """A launcher may keep what it has allocated: the next session knows it still."""
    for value in (1, 2):
        out = np.zeros(64, np.float32)
        code, report = run(checked, "through_workspace", out, value)
        assert (code, kinds(report), out[5]) == (0, [], 5.0 * value)
        assert [n for n in report.buffers if n.startswith("allocation")] == ["allocation 1 (storage.cu:107)"]


def test_policies(checked):
    with pytest.raises(ValueError, match="lane_order must be one of ascending, descending, random"):
        simt.Policy(lane_order="sideways")
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="time_limit must be a number of seconds, or 0 for no limit"):
            simt.Policy(time_limit=seconds)
    with pytest.raises(ValueError, match="stack_bytes must be at least 4096, not 4095"):
        simt.Policy(stack_bytes=4095)
    with pytest.raises(TypeError), checked.session(unknown=1):
        pass
    assert dict(simt.Policy(time_limit=1.5, block_order="random").settings())["time_limit_ms"] == 1500
    with checked.session(), pytest.raises(ZeroDivisionError):  # a session that fails leaves nothing behind
        raise ZeroDivisionError
    assert run(checked, "same_write", np.zeros(1, np.int32), 1, 1)[1].findings == ()


def test_random_orders_are_repeatable(fast):
    def order(seed: int, which: str) -> list[int]:
        old = np.zeros(100, np.int32)
        ones, words = np.ones(100, np.int32), np.zeros(8, np.int32)
        run(fast, "run_atomics", 0, words, ones, old, 100, seed=seed, lane_order=which)
        return old.tolist()

    assert order(1, "random") == order(1, "random") != order(2, "random")
    assert order(0, "ascending") == list(range(100))
    assert sorted(order(5, "random")) == list(range(100))


def test_without_addr2line_places_are_offsets(checked, monkeypatch):
    monkeypatch.setattr(symbols.shutil, "which", lambda name: None)
    monkeypatch.setattr(symbols, "_known", {})
    _, report = run(checked, "same_write", np.zeros(1, np.int32), 1, 64)
    assert kinds(report) == ["race"]
    assert f"{checked.path.name}+0x" in str(report.findings[0])


# ---- programs with a main of their own

PROGRAM = """
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
__global__ void shift(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i + n];
}
int main(int argc, char** argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 0;
    float *in, *out, host[128] = {1, 2, 3};
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    shift<<<2, 64>>>(out, in, n);
    printf("%s\\n", cudaGetErrorString(cudaGetLastError()));
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    cudaFree(in);
    if (n == 99) shift<<<1, 64>>>(out, in, 0);
    if (n == 77) cudaMemcpy(host, out, sizeof host + 4, cudaMemcpyDeviceToHost);
    if (n == 55) *(volatile int*)nullptr = 1;
    return n == 33 ? 3 : 0;
}
"""


@pytest.fixture
def program(tmp_path: Path, cache: Path):
    path = tmp_path / "shift.cu"
    path.write_text(PROGRAM)

    def start(*words: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        root = Path(simt.__file__).parents[3]
        env = {**os.environ, "PYTHONPATH": str(root)}
        argv = [sys.executable, "-m", "pav2gen.runtime.simt", str(path), "--cache-dir", str(cache), *words]
        return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=cwd, timeout=120)

    return start


def test_a_clean_program(program, tmp_path):
    done = program("--json", "report.json")
    assert done.returncode == 0, done.stderr
    assert "no error\n" in done.stdout and "no findings" in done.stdout and "allocation 1 (shift.cu:12)" in done.stdout
    raw = json.loads((tmp_path / "report.json").read_text())
    assert raw["totals"]["blocks"] == 2 and raw["findings"] == []


def test_a_report_that_cannot_be_written_is_told_before_the_program_runs(program):
    done = program("--json", "nowhere/report.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nowhere/report.json: cannot be written (No such file or directory)\n"


def test_a_program_with_findings(program):
    done = program("--arg", "1", "--warp-size", "32", "--lane-order", "descending")
    assert done.returncode == 1
    assert "an illegal memory access was encountered" in done.stdout
    assert (
        "out-of-bounds: no buffer is at this address, 0 bytes past the end of 'allocation 1 (shift.cu:12)' (512 bytes)"
        in done.stdout
    )
    assert "shift.cu:7" in done.stdout and "the launch was stopped here" in done.stdout


def test_freed_memory_and_copies_beyond_the_end(program):
    done = program("--arg", "99")
    assert done.returncode == 1 and "was freed" in done.stdout
    done = program("--arg", "77")
    assert done.returncode == 1 and "host read of 516 bytes  shift.cu:20" in done.stdout


def test_exit_codes(program):
    assert program("--arg", "33", "--fast").returncode == 3
    done = program("--arg", "55", "--fast")
    assert done.returncode == 128 + 11 and "SIGSEGV, in its host code" in done.stderr
    assert program("-D", "main=").returncode == 2
    done = program("--time-limit", "-1")
    assert (done.returncode, done.stderr) == (
        2,
        "error: time_limit must be a number of seconds, or 0 for no limit, not -1.0\n",
    )
    assert "usage" in program("--help").stdout
