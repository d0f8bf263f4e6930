"""What makes a build of 2,000 variants fast and small, without a clock: benches/build_speed.py has the times."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, touched

BENCH = REPOSITORY / "benches" / "build_speed.py"
BUILD = """\
import sys
from pav2gen.cli import main
main(["build", "large.yaml"], standalone_mode=False)
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
"""


@pytest.fixture
def large_spec(folder: Path) -> Path:
    """A spec of 2,000 variants."""
    found = importlib.util.spec_from_file_location("build_speed", BENCH)
    assert found and found.loader
    bench = importlib.util.module_from_spec(found)
    found.loader.exec_module(bench)
    path = Path("large.yaml")
    path.write_text(bench.LARGE_SPEC)
    return path


def build() -> tuple[str, int]:
    """Build in a process of its own: what it printed, and the most memory it held, in KiB."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run([sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True, check=True)
    return result.stdout, int(result.stderr)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read the memory from")
def test_memory_and_a_second_build_that_touches_nothing(large_spec: Path) -> None:
    out = Path("generated")
    printed, peak = build()
    assert "(large: 2000 kernels)" in printed
    assert peak < 150 << 10
    before = touched(out)
    printed, peak = build()
    assert touched(out) == before
    assert printed.startswith("generated: 0 files written, 0 removed, ") and peak < 150 << 10
