"""The committed package, loaded by path under a private name, as its own tests load it."""

import importlib.util
import sys
from pathlib import Path

import pytest

from .stand_in import CorexMachine

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
