"""Registers by ptxas: what is read, what follows from it, what is kept, and what is said if nvcc fails.

A program stands in for nvcc. tests/runtime/test_compilers.py asks the real one.
"""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pav2gen import cli
from pav2gen.bench.registers import ptxas
from pav2gen.bench.registers.compiled_figures import figures, notes
from pav2gen.bench.registers.ptxas_output import Usage, usage_of, usages
from pav2gen.reading.selection import load
from pav2gen.runtime.building import toolchain

QWEN = Path("specs/qwen36.yaml").resolve()
NAMES = ("hd256_g6_b16_f16_p1024", "hd256_g6_b16_f16_p512")
FILTERS = ["hd256_g6_b16_f16_p1024", "hd256_g6_b16_f16_p512"]

STAND_IN = """#!{python}
import json, os, re, subprocess, sys, time
home = os.path.dirname(os.path.abspath(__file__))
told = json.load(open(os.path.join(home, "told.json")))
if "--version" in sys.argv:
    print("nvcc: Cuda compilation tools, release " + told["release"] + ", V1"); sys.exit()
if "--dryrun" in sys.argv:
    sys.exit(1)
with open(os.path.join(home, "calls"), "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if told["hangs"]:
    subprocess.Popen(["sleep", "60"]).wait()
if told["broken"]:
    sys.exit(told["broken"])
source = next(word for word in sys.argv if word.startswith("batch") and word.endswith(".cu"))
for name in re.findall('#include "(.*)"', open(source).read()):
    text = open(name).read()
    space = re.search(r"^namespace (\\w+) {{$", text, re.M)[1]
    kernel = re.search(r"(\\w+_kernel)\\(Pav2\\w*Args a", text)[1]
    name = f"_ZN{{len(space)}}{{space}}{{len(kernel)}}{{kernel}}E8Pav2Args"
    print(f"ptxas info    : Compiling entry function '{{name}}' for 'sm_75'", file=sys.stderr)
    print("    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads", file=sys.stderr)
    used = f"{{told['registers']}} registers, used 1 barriers, 640 bytes smem, 400 bytes cmem[0]"
    print("ptxas info    : Used " + used, file=sys.stderr)
"""


class Nvcc:
    """A folder with a program called nvcc, which does as it is told."""

    def __init__(self, home):
        self.home = home
        self.known = {"release": "13.0", "registers": 101, "broken": "", "hangs": False}
        home.mkdir()
        (home / "nvcc").write_text(STAND_IN.format(python=sys.executable))
        (home / "nvcc").chmod(0o755)
        self.tell()

    def tell(self, **words):
        self.known |= words
        (self.home / "told.json").write_text(json.dumps(self.known))

    def calls(self):
        path = self.home / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("PAV2_CACHE", str(tmp_path / "cache"))
    return Nvcc(tmp_path / "bin")


def chosen(*filters):
    return load([QWEN], filters or FILTERS, tuned=False)[0]


def run(*words):
    return CliRunner().invoke(cli.main, words)


def test_what_ptxas_prints_is_read():
    output = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN4pav213reduce_kernelI6__halfEEv8Pav2Args' for 'sm_75'
ptxas info    : Function properties for _ZN4pav213reduce_kernelI6__halfEEv8Pav2Args
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 4160 bytes smem, 700 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN1a14partial_kernelE8Pav2Args' for 'sm_75'
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, 700 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compiling entry function '_ZN1b14partial_kernelE8Pav2Args' for 'sm_75'
"""
    assert usages(output) == {
        "_ZN4pav213reduce_kernelI6__halfEEv8Pav2Args": Usage(40, 0, 4160),
        "_ZN1a14partial_kernelE8Pav2Args": Usage(255, 32, 0),
    }
    assert usages("") == {}


def test_a_name_that_another_name_contains_is_not_taken():
    kernel = next(each for each in chosen().built if each.v.slug == "hd256_g6_b16_f16_p1024")
    name = f"{len('qwen36_' + kernel.v.slug)}qwen36_{kernel.v.slug}"
    found = {
        f"_ZN{name.replace('36', '37', 1)}14partial_kernelE8Pav2Args": Usage(1, 0, 0),
        f"_ZN{name}13reduce_kernelE8Pav2Args": Usage(2, 0, 0),
        f"_ZN{name}14partial_kernelE8Pav2Args": Usage(3, 0, 0),
    }
    assert usage_of(kernel, found) == Usage(3, 0, 0)


def test_the_registers_and_what_follows_from_them(nvcc):
    nvcc.tell(registers=197)
    selection = chosen()
    found = ptxas.measure(selection)
    assert found.arch == "sm_75"
    assert set(found.usages.values()) == {Usage(197, 12, 640)} and len(found.usages) == 2
    by_slug = {kernel.v.slug: figures(kernel, found) for kernel in selection.built}
    # 197 registers are 200: 64 K hold 2 blocks of 128 threads and 1 of 256. A thread of the first loads
    # 32 bytes together.
    small, large = (by_slug[name] for name in NAMES)
    assert (small["registers"], small["registers_from"], small["spilled_bytes"]) == (197, "ptxas sm_75", 12)
    assert (small["threads"], small["resident_blocks"], small["kib_in_flight"]) == (128, 2, 2 * 128 * 32 / 1024)
    assert small["in_flight_share"] == round(2 * 128 * 32 / 21_908, 2)
    assert (large["threads"], large["resident_blocks"]) == (256, 1)
    assert figures(selection.built[0], None) == selection.built[0].p.figures
    assert selection.built[0].p.figures["registers_from"] == "estimate"


def test_a_kernel_is_compiled_once_for_each_compiler_and_card(nvcc, tmp_path):
    def calls_of(**told):
        nvcc.tell(**told)
        before = len(nvcc.calls())
        found = ptxas.measure(chosen(), told.get("arch"))
        sources = sum(call.count("-cubin") for call in nvcc.calls()[before:])
        return sources, {usage.registers for usage in found.usages.values()}

    first, registers = calls_of()
    assert 1 <= first <= 2 and registers == {101}
    assert calls_of(registers=7) == (0, {101})
    assert calls_of(release="13.1")[1] == {7}
    assert calls_of(registers=9, arch="sm_80") == (first, {9})
    entries = sorted((tmp_path / "cache" / "ptxas").iterdir())
    assert len(entries) == 6
    for entry in entries:
        entry.write_text('{"registers": -1}')
    assert calls_of(registers=11) == (first, {11})


def test_the_sources_reach_nvcc_as_a_build_compiles_them(nvcc):
    ptxas.measure(chosen(), "sm_80")
    for call in nvcc.calls():
        assert {"-std=c++17", "-O3", "-arch=sm_80", "-cubin", "-Xptxas=-v", "-DPAV2_WARP_SIZE=32"} <= set(call)


def test_list_prints_json_on_stdout_and_the_card_on_stderr(nvcc):
    done = run("list", str(QWEN), "--ptxas", "--json", "-f", NAMES[0])
    (entry,) = json.loads(done.stdout)
    assert entry["figures"]["registers"] == 101 and entry["figures"]["registers_from"] == "ptxas sm_75"
    note = "by ptxas for sm_75, CUDA 13.0; not those of ivcore10, because CoreX's compiler assigns its own"
    assert done.stderr == f"note: registers: {note}\n"
    table = run("list", str(QWEN), "--ptxas", "-f", NAMES[0]).stdout
    assert "registers_from" in table and "ptxas sm_75" in table
    assert "estimate" in run("list", str(QWEN), "-f", NAMES[0]).stdout and len(nvcc.calls()) == 1


def test_the_report_names_the_origin_of_its_registers(nvcc, tmp_path):
    page = tmp_path / "page.html"
    assert run("report", str(QWEN), "-f", NAMES[0], "--out", str(page)).exit_code == 0
    planned = chosen(NAMES[0]).built[0].p.figures["registers"]
    assert f"{planned} (estimate)" in page.read_text() and "by ptxas" not in page.read_text()
    assert run("report", str(QWEN), "-f", NAMES[0], "--out", str(page), "--ptxas", "--arch", "sm_80").exit_code == 0
    assert (
        page.read_text().count("101 (ptxas sm_80)") == 1
        and "by ptxas for sm_80, CUDA 13.0; not those" in page.read_text()
    )


def test_the_report_of_extend_kernels_has_registers_only_from_ptxas(nvcc, tmp_path):
    page, words = tmp_path / "page.html", ["report", str(QWEN), "-f", NAMES[0], "-f", "extend_hd256_g6_b16_f16"]
    assert run(*words, "--out", str(page)).exit_code == 0
    assert page.read_text().count('<th scope="col">registers</th>') == 1
    assert run(*words, "--out", str(page), "--ptxas").exit_code == 0
    assert page.read_text().count('<th scope="col">registers</th>') == 2
    assert page.read_text().count("101 (ptxas sm_75)") == 2


def test_a_card_of_nvidia_is_compiled_for_itself(nvcc, tmp_path):
    path = tmp_path / "qwen36.yaml"
    path.write_text(QWEN.read_text().replace("target: bi-v100", "target: sm_80"))
    selection = load([path], [NAMES[0]], tuned=False)[0]
    found = {"qwen36": ptxas.measure(selection)}
    assert notes([selection], found) == ["registers: by ptxas for sm_80, CUDA 13.0"]
    other = {"qwen36": ptxas.measure(selection, "sm_90")}
    assert notes([selection], other) == ["registers: by ptxas for sm_90, CUDA 13.0; the target is sm_80"]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            {"broken": "k.cu(7): error: no such thing\nand more"},
            f"failed to compile {NAMES[0]} for sm_75: k.cu(7): error:",
        ),
        ({"broken": "ptxas fatal   : sm_10 is not known"}, "for sm_75: ptxas fatal : sm_10 is not known"),
        ({"broken": 3}, "for sm_75: no output, exit code 3"),
    ],
)
def test_a_failure_is_told_in_a_line(nvcc, tmp_path, told, message):
    nvcc.tell(**told)
    page = tmp_path / "page.html"
    for words in (["list", "--json"], ["report", "--out", str(page)]):
        done = run(words[0], str(QWEN), "--ptxas", "-f", NAMES[0], *words[1:])
        assert done.exit_code == 2 and done.stdout == "" and message in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not page.exists() and not list((tmp_path / "cache" / "ptxas").iterdir())


def test_output_without_registers_is_told(nvcc, monkeypatch):
    text = (nvcc.home / "nvcc").read_text()
    (nvcc.home / "nvcc").write_text(text.replace("info    : Used", "used"))
    done = run("list", str(QWEN), "--ptxas", "-f", NAMES[0])
    assert done.exit_code == 2 and done.stdout == ""
    assert f"nvcc compiled {NAMES[0]} and did not print its registers; it printed: ptxas info : Comp" in done.stderr


def test_a_compiler_that_hangs_is_stopped_with_its_children(nvcc, monkeypatch):
    nvcc.tell(hangs=True)
    monkeypatch.setattr(ptxas, "TIME_LIMIT", 2)
    started = time.monotonic()
    done = run("list", str(QWEN), "--ptxas", "-f", NAMES[0])
    assert done.exit_code == 2 and f"nvcc did not compile {NAMES[0]} in 2 s; choose fewer kernels" in done.stderr
    assert time.monotonic() - started < 40  # sleep holds the pipe for 60 s


def test_without_nvcc_the_command_says_so(nvcc, monkeypatch, tmp_path):
    (nvcc.home / "nvcc").unlink()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(nvcc.home))
    monkeypatch.setattr(toolchain, "pip_folders", list)
    done = run("list", str(QWEN), "--ptxas", "--json")
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr.startswith("error: --ptxas needs nvcc: no nvcc on the path")
    assert done.stderr.endswith("; without --ptxas, the plan's estimate is shown\n")


def test_options_without_effect_are_refused(nvcc, tmp_path):
    done = run("list", str(QWEN), "--arch", "sm_80")
    assert done.exit_code == 2 and "--arch has no effect without --ptxas; add --ptxas" in done.stderr
    path = tmp_path / "qwen36.yaml"
    path.write_text(QWEN.read_text().replace("backends: [torch, cuda]", "backends: [torch]"))
    done = run("list", str(path), "--ptxas")
    assert done.exit_code == 2 and "no kernel here is a CUDA kernel; add cuda to the backends" in done.stderr


def test_the_programs_of_pip_packages_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "nvidia" / "cu13" / "bin"
    folder.mkdir(parents=True)
    (folder / "cuobjdump").write_text("#!/bin/sh\n")
    (folder / "cuobjdump").chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    assert toolchain.cuda_program("nosuch") is None
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    assert folder in toolchain.pip_folders()
    if not any((each / "cuobjdump").exists() for each in toolchain.pip_folders() if each != folder):
        assert toolchain.cuda_program("cuobjdump") == str(folder / "cuobjdump")


def test_the_programs_beside_nvcc_are_found(tmp_path, monkeypatch):
    """The nvcc on PATH may be a script that calls another one."""
    real = tmp_path / "cuda" / "bin"
    real.mkdir(parents=True)
    for name, text in {"nvcc": f'echo "#$ _HERE_={real}"', "fatdump": "true"}.items():
        (real / name).write_text(f"#!/bin/sh\n{text}\n")
        (real / name).chmod(0o755)
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {real}/nvcc "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    assert toolchain.cuda_program("fatdump") == str(real / "fatdump")
