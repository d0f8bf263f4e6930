"""The test kernels, built once for each warp size and kind of build."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pav2gen.runtime import simt
from pav2gen.runtime.building.cache import locked
from pav2gen.runtime.building.compiling import toolchain_folder
from pav2gen.runtime.simt.cache import note_of

HERE = Path(__file__).parent
CHECKED = [HERE / name for name in ("storage.cu", "patterns.cu", "faults.cu", "races.cu")]
FAST = [HERE / "builtins.cu", *CHECKED]


@pytest.fixture(scope="session")
def kept() -> Path:
    """Where compiled files are kept for the next run. Tests of kernels share the simulator that is compiled there."""
    return simt.own_folder(Path(os.environ["SIMT_CACHE"])) if "SIMT_CACHE" in os.environ else toolchain_folder("host")


@pytest.fixture(scope="session")
def cache(session_folder: Path, kept: Path) -> Path:
    """A folder for this run, and for all its workers, that has nothing but the simulator, if it was compiled before."""
    folder = simt.own_folder(session_folder / "simt")
    with locked(folder / "simulator"):
        for made in kept.glob("runtime-*.o"):
            for file in (made, note_of(made)):
                if file.exists() and not (folder / file.name).exists():
                    shutil.copy(file, folder)
    return folder


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
