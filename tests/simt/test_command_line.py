"""`simt run` among files that it must not lose, in every locale, with programs that behave badly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pav2gen.runtime import simt

ROOT = Path(simt.__file__).parents[3]
PROGRAM = """
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
__global__ void twice(int* x, int leave) {
    if (leave) exit(0);
    x[threadIdx.x] *= 2;
}
int main(int argc, char**) {
    int host[32] = {1, 2, 3}, *device;
    cudaMalloc(&device, sizeof host);
    cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice);
    twice<<<1, 32>>>(device, argc > 1);
    cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost);
    printf("%d %d\\n", host[1], cudaGetLastError());
}
"""


def start(cache: Path, folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line; whatever it reads or writes as text without saying how it is encoded is an error."""
    argv = [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning", "-m", "pav2gen.runtime.simt"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run([*argv, "--cache-dir", str(cache), "--fast", *words], cwd=folder, env=environment,
                          capture_output=True, timeout=120)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x.cu").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize(
    "words, said",
    [
        ((), b"error: no program is given; name its source: "),
        (("nope.cu",), b"error: "),
        (("x.cu", "--seed", "x"), b"error: argument --seed: invalid int value: 'x'; see "),
    ],
)
def test_a_mistake_is_one_line(cache, folder, words, said):
    done = start(cache, folder, *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(said) and done.stderr.count(b"\n") == 1


def test_a_report_never_replaces_another_kind_of_file(cache, folder):
    (folder / "other.json").write_text('{"name": 1}')
    os.mkfifo(folder / "fifo")
    for victim, words in (("x.cu", b"not a report"), ("other.json", b"not a report"), ("fifo", b"not a regular"),
                          (".", b"not a regular")):  # fmt: skip
        before = (folder / victim).read_bytes() if (folder / victim).is_file() else b""
        done = start(cache, folder, "x.cu", "--json", victim)
        assert (done.returncode, done.stdout) == (2, b"") and words in done.stderr
        assert (done.stderr.count(b"\n") == 1 and not before) or (folder / victim).read_bytes() == before


def test_a_report_replaces_an_older_one(cache, folder):
    (folder / "report.json").touch()
    for _ in range(2):
        assert start(cache, folder, "x.cu", "--json", "report.json").returncode == 0
    assert json.loads((folder / "report.json").read_text())["totals"]["launches"] == 1


def test_no_report_is_left_where_nothing_ran(cache, folder):
    (folder / "broken.cu").write_text("int main() { return x; }\n")
    done = start(cache, folder, "broken.cu", "--json", "report.json")
    assert done.returncode == 2 and b"broken.cu:1" in done.stderr and not (folder / "report.json").exists()


def test_a_source_that_would_be_waited_for(cache, folder):
    os.mkfifo(folder / "fifo.cu")
    done = start(cache, folder, "fifo.cu")
    assert done.returncode == 2 and done.stderr.endswith(b"fifo.cu: not a regular file\n")


def test_a_kernel_that_exits_has_not_succeeded(cache, folder):
    done = start(cache, folder, "x.cu", "--arg", "leave")
    assert done.returncode == 1 and b"exit: the kernel called exit()" in done.stdout
    assert done.stdout.startswith(b"2 719\n")


@pytest.mark.parametrize(
    "words, said",
    [
        (["--time-limit", "1e300"], "time_limit must be a number of seconds, or 0 for no limit"),
        (["--stack-bytes", "99999999999999"], "stack_bytes must be at most"),
        (["--seed", "99999999999999999999"], "seed must be an integer of 64 bits"),
        (["--cache-dir", "/dev/null/cache"], "the cache can't be made there"),
        (["missing.cu"], "missing.cu: No such file or directory"),
    ],
)
def test_one_line_for_a_mistake(cache, folder, words, said):
    done = start(cache, folder, "x.cu", *words)
    assert done.returncode == 2 and said.encode() in done.stderr and done.stderr.count(b"\n") == 1, done.stderr


def test_a_program_that_ends_badly(cache, folder):
    """By a signal without a name, or with half of a report."""
    (folder / "signal.cu").write_text("#include <csignal>\nint main() { raise(SIGRTMIN + 3); }\n")
    done = start(cache, folder, "signal.cu")
    assert done.returncode == 128 + 37 and b"ended by signal 37" in done.stderr
    (folder / "half.cu").write_text(
        "#include <cstdio>\n#include <cstdlib>\n#include <unistd.h>\nint main() {\n"
        '    FILE* f = fopen(getenv("SIMT_REPORT"), "w");\n    fputs("{\\"form", f), fclose(f);\n    _exit(0);\n}\n'
    )
    done = start(cache, folder, "half.cu")
    assert done.returncode == 1 and done.stderr == b"the program ended without a report\n"


@pytest.fixture(scope="session")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the locale zh_CN.GBK, if this system can make it."""
    folder = tmp_path_factory.mktemp("locales")
    if shutil.which("localedef"):
        argv = ["localedef", "-c", "-i", "zh_CN", "-f", "GBK", str(folder / "zh_CN.GBK")]
        subprocess.run(argv, capture_output=True, check=False)
    return folder


@pytest.mark.parametrize("locale", ["C", "zh_CN.GBK", "C.UTF-8"])
def test_every_locale(cache, tmp_path, locales, locale):
    """A folder, comments and strings in Chinese, in two encodings; a compiler's message that quotes them."""
    if locale == "zh_CN.GBK" and not (locales / locale).exists():
        pytest.skip("this system can't make the locale zh_CN.GBK")
    env = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LOCPATH": str(locales)}
    if locale != "zh_CN.GBK":
        del env["LOCPATH"]
    folder = tmp_path / "\u6ce8\u610f"
    folder.mkdir()
    source = PROGRAM.replace("%d %d", "%d %d \u6ce8\u610f").encode() + "// \u6ce8\u610f\n".encode("gbk")
    (folder / "\u6838.cu").write_bytes(source)
    done = start(cache, folder, "\u6838.cu", "--json", "report.json", **env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "4 0 \u6ce8\u610f\n".encode() in done.stdout and b"no findings" in done.stdout
    assert json.loads((folder / "report.json").read_text("utf-8"))["findings"] == []
    (folder / "\u6838.cu").write_bytes(source.replace(b"int argc", 'int argc, "\u610f"'.encode("gbk")))
    done = start(cache, folder, "\u6838.cu", **env)
    assert done.returncode == 2 and b"error:" in done.stderr and b"Traceback" not in done.stderr
