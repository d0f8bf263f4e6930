"""The committed package, loaded by path under a private name, as its own tests load it."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from pav2gen.commands.build import BuildOptions, build

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

GENERATED = Path(__file__).resolve().parents[2] / "generated"


def load(root: Path, name: str):
    """The package at ``root`` under ``name``."""
    spec = importlib.util.spec_from_file_location(name, root / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


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
