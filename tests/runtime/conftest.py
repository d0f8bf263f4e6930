"""The committed package, loaded by path under a private name, as its own tests load it."""

import hashlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from pav2gen.commands.build import BuildOptions, build
from pav2gen.runtime import simt
from pav2gen.runtime.building.cache import cache_folder
from pav2gen.runtime.simt.cache import digest

from .stand_in import CorexMachine

#: A conftest for a folder of packages with faults in them: the first test that notices a fault is enough.
CAUGHT_ONCE = """
import pytest

CAUGHT = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.nodeid.split("/")[0] in CAUGHT:
        pytest.skip("a test of this package failed already")


def pytest_runtest_logreport(report):
    if report.failed:
        CAUGHT.add(report.nodeid.split("/")[0])
"""

#: Options of a pytest run of which only the failed tests count. Rewriting the asserts would take most of its time.
COUNTING = ("-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--tb=no", "--assert=plain")

GENERATED = Path(__file__).resolve().parents[2] / "generated"


def load(root: Path, name: str):
    """The package at ``root`` under ``name``."""
    spec = importlib.util.spec_from_file_location(name, root / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def settle(folder):
    """Move a built package into the cache of compiled files, and return its new path, which its content determines.

    The names of compiled files depend on the paths of their sources. In a temporary folder, a later run would compile
    all of them again.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    content = (part for path in files for part in (str(path.relative_to(folder)), digest(path)))
    places = simt.own_folder(simt.own_folder(cache_folder()) / "test_packages")
    place = places / hashlib.sha256("\0".join(content).encode()).hexdigest()[:20]
    moving = place.with_suffix(f".{os.getpid()}")
    shutil.move(folder, moving)
    try:
        moving.rename(place)
    except OSError:  # it exists: another run has built the same
        shutil.rmtree(moving)
    return place


@pytest.fixture(scope="session")
def package():
    return load(GENERATED, "pav2_of_the_runtime_tests")


EXTEND_SPEC = """
schema: 1
name: small
target: bi-v100
model: {num_heads: 6, num_kv_heads: 2, max_seq_len: 131072}
axes: {head_size: 64, gqa_ratio: 3, partition_size: 256, dtype: [float16, float32], kv_cache_dtype: [auto, fp8_e4m3]}
features: {sliding_window: [null, 20]}
exclude:
  - when: {dtype: float32, kv_cache_dtype: fp8_e4m3}
    because: a small package
  - when: {sliding_window: 20, dtype: float16}
    because: a small package
operators: [decode, extend, cache]
backends: [torch]
"""


@pytest.fixture(scope="session")
def extending(tmp_path_factory):
    """A small package with all operators in PyTorch."""
    root = tmp_path_factory.mktemp("extending")
    (root / "small.yaml").write_text(EXTEND_SPEC)
    build([root / "small.yaml"], BuildOptions(root / "package"))
    yield load(root / "package", "pav2_of_the_extend_tests")
    shutil.rmtree(root)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("COREX_HOME", str(tmp_path / "corex"))
    monkeypatch.setenv("PAV2_CACHE", str(tmp_path / "cache"))
    return CorexMachine(tmp_path / "corex")


@pytest.fixture
def kernels(tmp_path):
    """Two sources, by the names of their entry functions."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.cu").write_text(f"// {name}\n")
    return {f"pav2_{name}": tmp_path / f"{name}.cu" for name in ("one", "two")}
