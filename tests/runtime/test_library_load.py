"""What ``load`` and ``compile`` take and refuse: libraries for another device, broken tables, every locale."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from pav2gen import cli
from pav2gen.runtime import library
from pav2gen.runtime.building import toolchain

from .conftest import GENERATED, load
from .nvcc import required
from .test_library_record import library_of, record_of

REPOSITORY = GENERATED.parent


@pytest.fixture
def package(request):
    return load(GENERATED, "pav2_" + re.sub(r"\W", "_", request.node.name))


@pytest.fixture
def library_for(package, tmp_path):
    """A library with the record of one kernel of ``package``, for a toolchain, and nothing behind it."""
    row = next(row for row in package.operator.table.rows if row.cuda)
    kernels = {row.symbol: GENERATED / row.cuda}
    return lambda name, **fields: library_of(record_of(kernels, name, **fields), tmp_path, f"{name}.so")


def error_of(package):
    return sys.modules[f"{package.__name__}.runtime.library"].LibraryError


def test_a_library_is_filed_by_what_it_is(package, library_for):
    package.load(library=library_for("nvcc"))
    assert set(package.kernels.libraries) == {True}
    with pytest.raises(error_of(package), match="not built with the simt runtime"):
        package.load(library=library_for("host"))  # it says so, and the runtime is not in it
    with pytest.raises(error_of(package), match=r"nvcc\.so was not built for host: it is a library for nvcc, sm_75"):
        package.load("host", library=library_for("nvcc"))
    with pytest.raises(error_of(package), match=r"nvcc\.so was not built for corex"):
        package.load("corex", library=library_for("nvcc"))


def test_a_host_library_does_not_serve_a_gpu(package, monkeypatch, caplog):
    row = next(row for row in package.operator.table.rows if row.cuda)
    path = library.build(library.kernels_of([row], GENERATED), "host")
    monkeypatch.setenv("PAV2_LIBRARY", str(path))
    assert package.load() is None and package.kernels.libraries == {}
    assert "was not built for the GPU: it is a library for host" in caplog.text
    assert package.load(library=path) == str(path) and set(package.kernels.libraries) == {False}


def test_a_library_of_older_sources_does_not_serve(package, tmp_path, monkeypatch, caplog):
    row = next(row for row in package.operator.table.rows if row.cuda)
    older = tmp_path / "older.cu"
    older.write_text("int older;\n")
    monkeypatch.setenv("PAV2_LIBRARY", str(library_of(record_of({row.symbol: older}), tmp_path)))
    assert package.load() is None
    assert f"does not fit this package: its kernel (as {row.symbol}) was compiled from other sources" in caplog.text


@pytest.mark.parametrize("arch, fits", [("sm_70", True), ("sm_75", True), ("sm_80", False), ("sm_120", False)])
def test_a_library_for_a_newer_device_is_refused(package, library_for, monkeypatch, arch, fits):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    path = library_for("nvcc", arch=arch)
    if fits:
        assert package.load(library=path) == str(path)
    else:
        with pytest.raises(error_of(package), match=f"was compiled for {arch}; this device is sm_75"):
            package.load(library=path)


@pytest.mark.parametrize("theirs, warned", [("12.8", True), ("13.0", False), (None, False)])
def test_another_cuda_than_torch_s_is_said(package, library_for, monkeypatch, caplog, theirs, warned):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.version, "cuda", theirs)
    package.load(library=library_for("nvcc", compiler="nvcc: Cuda compilation tools, release 13.0, V13.0.88"))
    assert ("was compiled by nvcc of CUDA 13, but torch was built for CUDA 12" in caplog.text) == warned


def test_the_release_that_nvcc_names():
    assert toolchain.cuda_major("nvcc: NVIDIA (R) Cuda compiler driver release 13.0, V13.0.88") == "13"
    assert toolchain.cuda_major("clang version 16.0.6 (CoreX 3.2.3)") == ""


def test_every_error_of_load_is_the_promised_one(package, tmp_path):
    with pytest.raises(error_of(package), match="warp_size is 32 or 64, not 48"):
        package.load("host", warp_size=48)
    with pytest.raises(error_of(package), match="no toolchain 'hosts'"):
        package.load("hosts")
    with pytest.raises(error_of(package), match=r"gone\.so can't be read: No such file"):
        package.load(library=tmp_path / "gone.so")


BROKEN = {
    "def": r"SyntaxError",
    "import nothing_of_that_name": r"ModuleNotFoundError",
    "ROWS = 1 / 0": r"ZeroDivisionError",
    "X = 1": r"AttributeError",
    "ROWS = [3]": r"AttributeError",
    "ROWS = 3": r"TypeError",
    "x = '\\0": r"SyntaxError",
}


@pytest.mark.parametrize("table", BROKEN)
def test_a_broken_table_is_one_sentence(tmp_path, table):
    (tmp_path / "dispatch.py").write_text(table)
    done = CliRunner().invoke(cli.main, ["compile", str(tmp_path), "--toolchain", "host"])
    assert done.exit_code == 2 and len(done.output.splitlines()) == 1
    said = rf"error: .*dispatch\.py can't be imported \({BROKEN[table]}: .*\); build the package again"
    assert re.match(said, done.output)


def test_a_compiler_s_words_in_another_encoding(machine, kernels):
    machine.breaks("k.cu:7: 错误".encode("gbk"))
    with pytest.raises(library.LibraryError, match=r"k\.cu:7: "):
        library.build(kernels, "corex", jobs=1)


# ---- locales

#: Name -> the variables that set it. The first two are what Python makes of a locale without its own UTF-8 mode.
LOCALES = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "GBK": {"LC_ALL": "zh_CN.GBK", "PYTHONUTF8": "0"},
    "UTF-8": {"LC_ALL": "C.UTF-8"},
}


@pytest.fixture(scope="module")
def small_package(tmp_path_factory):
    """A package of one kernel."""
    root = tmp_path_factory.mktemp("small")
    arguments = ["build", str(REPOSITORY / "specs" / "phi2.yaml"), "--out", str(root / "package")]
    assert CliRunner().invoke(cli.main, [*arguments, "--filter", "*_f16_p512"]).exit_code == 0
    return root / "package"


@pytest.fixture(scope="module")
def variables(small_package, tmp_path_factory):
    """variables(name): those of a locale, and a cache for all of them, in a folder that ASCII can't spell."""

    def of(name):
        found = {**os.environ, **LOCALES[name], "PAV2_CACHE": str(small_package.parent / "缓存")}
        return {**found, "LOCPATH": made_gbk(tmp_path_factory.mktemp("locales"))} if name == "GBK" else found

    return of


def made_gbk(folder):
    """A folder with the locale zh_CN.GBK, which few machines have installed."""
    maker = shutil.which("localedef")
    done = maker and subprocess.run([maker, "-i", "zh_CN", "-f", "GBK", str(folder / "zh_CN.GBK")], capture_output=True)
    required(done if done and (folder / "zh_CN.GBK").exists() else None, what="localedef and the sources of zh_CN")
    return str(folder)


LOAD = """
import importlib.util, sys, locale
spec = importlib.util.spec_from_file_location("pav2_here", sys.argv[1] + "/__init__.py")
sys.modules["pav2_here"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.stderr.write(locale.getpreferredencoding(False))
sys.stdout.buffer.write(__import__("os").fsencode(module.load("host")) + b"\\n")
"""


@pytest.mark.parametrize("name", LOCALES)
def test_compile_and_load_in_every_locale(small_package, variables, name):
    environment = variables(name)

    def run(*command):
        done = subprocess.run([sys.executable, *command], capture_output=True, env=environment, cwd=REPOSITORY)
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
        return done

    for kernel in (small_package.parent / "缓存").glob("host/hd*.o"):
        kernel.unlink()  # it is compiled in each locale; the runtime once
    compiled = run("-m", "pav2gen", "compile", str(small_package), "--toolchain", "host").stdout
    assert Path(os.fsdecode(compiled.strip())).exists()
    loaded = run("-c", LOAD, str(small_package))
    assert Path(os.fsdecode(loaded.stdout.strip())).exists()
    assert loaded.stderr.decode().upper() == {"C": "ANSI_X3.4-1968", "GBK": "GBK", "UTF-8": "UTF-8"}[name]
    assert run(str(small_package / "runtime" / "library.py"), "--toolchain", "host").stdout == loaded.stdout


@pytest.mark.parametrize("name", LOCALES)
def test_a_compiler_error_in_every_locale(small_package, variables, tmp_path, name):
    """The source line that the compiler quotes has letters beyond ASCII."""
    broken = tmp_path / "package"
    shutil.copytree(small_package, broken)
    source = next(broken.glob("*/cuda_kernels/*.cu"))
    source.write_text(source.read_text("utf-8") + "\nint 错误 = naïve;\n", "utf-8")
    command = [sys.executable, "-m", "pav2gen", "compile", str(broken), "--toolchain", "host"]
    done = subprocess.run(command, capture_output=True, env=variables(name), cwd=REPOSITORY)
    said = done.stderr.decode("utf-8", "replace")
    assert done.returncode == 2 and "Traceback" not in said
    assert source.name in said and "error:" in said and "to repeat:" in said
