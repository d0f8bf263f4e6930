"""Launches wherever they stand: in the source, in headers however they are included, in macros."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pav2gen.runtime import simt

from .helpers import call

HEADER = """
#pragma once
#define RUN(K, ...) K<<<1, 64>>>(__VA_ARGS__)
// no launch: <<<
template <int N> __global__ __noinline__ void add(float* x) { x[threadIdx.x] += N; }
inline int add_two(float* x) {
    add<1 << 1><<<1, 64>>>(x);
    return cudaGetLastError();
}
"""
SOURCE = """
#include <cuda_runtime.h>
{include}
extern "C" __attribute__((visibility("default"))) int launch(float* x) {{
    {call};
    return cudaGetLastError();
}}
"""


def added(program: simt.Program) -> float:
    x = np.zeros(64, np.float32)
    assert call(program, "launch", x) == 0
    return float(x[63])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "k.cuh").write_text(HEADER)
    (tmp_path / "outer.h").write_text('#include "inner/k.cuh"\n')
    return tmp_path


def write(folder: Path, include: str, launch: str = "add_two(x)") -> Path:
    path = folder / "main.cu"
    path.write_text(SOURCE.format(include=include, call=launch))
    return path


@pytest.mark.parametrize(
    "include, options",
    [
        ('#include "outer.h"\n#include <memory>\n#include <string>', {}),
        ("#include <k.cuh>", {"include": ["inner"]}),
        ('#define H "inner/k.cuh"\n#include H', {}),
        ("#include <k.cuh>", {"flags": ["-isystem.", "-Iinner"]}),
        ("", {"flags": ["-include", "inner/k.cuh"]}),
    ],
    ids=["nested", "folder", "computed", "flags", "forced"],
)
def test_a_launch_in_a_header(folder, cache, monkeypatch, include, options):
    monkeypatch.chdir(folder)
    source = write(folder, include)
    assert added(simt.build([source], cache_dir=cache, **options)) == 2
    (folder / "inner" / "k.cuh").write_text(HEADER.replace("+= N", "+= 2 * N"))
    assert added(simt.build([source], cache_dir=cache, **options)) == 4


@pytest.mark.parametrize("variable", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_a_launch_in_a_header_that_the_environment_names(folder, cache, monkeypatch, variable):
    """What is compiled calls SIMT_LAUNCH."""
    monkeypatch.setenv(variable, str(folder / "inner"))
    plan = simt.compile_commands([write(folder, "#include <k.cuh>")], None, cache_dir=cache)
    argv = plan.compile[1].argv
    text = Path(argv[argv.index("-c") + 1]).read_text("utf-8")
    assert "SIMT_LAUNCH((add<1 << 1>), 1, 64)(x);" in text and "SIMT_LAUNCH((K), 1, 64)(__VA_ARGS__)" in text


def test_a_launch_in_a_macro_of_a_header(folder, cache):
    assert added(simt.build([write(folder, '#include "outer.h"', "RUN(add<3>, x)")], cache_dir=cache)) == 3


def test_an_error_in_a_header_names_its_line(folder, cache):
    source = write(folder, '#include "outer.h"')
    for old, new, line in (("64>>>(x)", "64(x)", 7), ("return cuda", "return nothing; cuda", 8)):
        (folder / "inner" / "k.cuh").write_text(HEADER.replace(old, new))
        with pytest.raises(simt.CompileError, match=rf"inner/k\.cuh:{line}:"):
            simt.build([source], cache_dir=cache)


def test_the_lines_of_findings_are_those_of_the_header(folder, cache):
    program = simt.build([write(folder, '#include "outer.h"')], checked=True, cache_dir=cache)
    with program.session() as session:
        call(program, "launch", np.zeros(64, np.float32))
    location = session.report.findings[0].locations[0]
    assert (Path(location.file).name, location.line) == ("k.cuh", 5)


def test_a_source_that_is_no_regular_file(tmp_path, cache):
    os.mkfifo(tmp_path / "fifo.cu")
    with pytest.raises(simt.CompileError, match=r"fifo\.cu: not a regular file"):
        simt.build([tmp_path / "fifo.cu"], cache_dir=cache)
    (tmp_path / "folder.cu").mkdir()
    with pytest.raises(simt.CompileError, match=r"folder\.cu: not a regular file"):
        simt.build([tmp_path / "folder.cu"], cache_dir=cache)


@pytest.mark.parametrize(
    "code, said",
    [
        ("int f() { return cudaMallocArray(0); }", "error: 'cudaMallocArray' is not supported by this runtime"),
        ("cudaGraph_t graph;", "error: 'cudaGraph_t' is not supported by this runtime"),
        ("auto f = nvcuda::wmma::load;", "error: 'nvcuda' is not supported by this runtime"),
        ("#include <cublas_v2.h>", "fatal error: cublas_v2.h is not supported by this runtime"),
        ("#include <thrust/sort.h>", "fatal error: thrust/sort.h is not supported by this runtime"),
    ],
)
def test_parts_of_cuda_that_are_not_there(tmp_path, cache, code, said):
    path = tmp_path / "lacking.cu"
    path.write_text(f"#include <cuda_runtime.h>\n{code}\n")
    with pytest.raises(simt.CompileError) as caught:
        simt.build([path], cache_dir=cache)
    assert f"{path}:2:" in caught.value.output and f"{said} (docs/simt.md, Limits)" in caught.value.output
    assert "did you mean" not in caught.value.output


def test_a_slip_keeps_the_compilers_guess(tmp_path, cache):
    path = tmp_path / "slip.cu"
    path.write_text("#include <own.h>\nint f() { return cudaMaloc(0, 4); }\n")
    with pytest.raises(simt.CompileError, match=r"own\.h: No such file"):
        simt.build([path], cache_dir=cache)
    path.write_text("int f() { return cudaMaloc(0, 4); }\n")
    with pytest.raises(simt.CompileError, match="did you mean 'cudaMalloc'"):
        simt.build([path], cache_dir=cache)
