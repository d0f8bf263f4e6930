"""The test kernels, built once for each warp size and kind of build."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pav2gen.runtime import simt
from pav2gen.runtime.building.cache import cache_folder, locked

HERE = Path(__file__).parent
CHECKED = [HERE / name for name in ("storage.cu", "patterns.cu", "faults.cu", "races.cu")]
FAST = [HERE / "builtins.cu", *CHECKED]


@pytest.fixture(scope="session")
def cache(session_folder: Path) -> Path:
    """A folder for this run, and for all its workers; SIMT_CACHE keeps what is compiled for the next."""
    return Path(os.environ.get("SIMT_CACHE") or session_folder / "simt")


@pytest.fixture(scope="session")
def kept() -> Path:
    """Where the libraries of all tests are kept for the next run, by the content of all that goes in."""
    return simt.own_folder(simt.own_folder(Path(os.environ.get("SIMT_CACHE") or cache_folder())) / "simt_tests")


@pytest.fixture(scope="session")
def library(kept: Path) -> Callable[..., simt.Program]:
    """`library(warp_size, checked)`: the test kernels."""

    @functools.cache
    def build(warp_size: int, checked: bool) -> simt.Program:
        with locked(kept / f"tests-{warp_size}-{checked}"):  # one worker builds it, the others find it
            return simt.build(CHECKED if checked else FAST, warp_size=warp_size, checked=checked, cache_dir=kept)

    return build


@pytest.fixture(params=[64, 32], ids=["warp64", "warp32"])
def warp(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def fast(library: Callable[..., simt.Program], warp: int) -> simt.Program:
    return library(warp, False)


@pytest.fixture
def checked(library: Callable[..., simt.Program], warp: int) -> simt.Program:
    return library(warp, True)
