"""Compiles the libraries that a test session needs in a separate process, while the first tests already run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

#: The program of that process. Its arguments are the package's folder and the symbols of kernels. It imports no torch.
PROGRAM = """
import importlib, sys, types
from pathlib import Path
root, *symbols = sys.argv[1:]
sys.modules["pav2"] = package = types.ModuleType("pav2")
package.__path__ = [root]
library = importlib.import_module("pav2.runtime.library")
kernels = library.kernels_of(library.package_rows(Path(root)), Path(root))
kernels = {symbol: kernels[symbol] for symbol in symbols}
for checked in (False, True):
    for warp_size in (64, 32):
        library.build_for_tests(kernels, warp_size, checked)
"""

_running: list[subprocess.Popen[bytes]] = []


def start(root: Path, symbols: Iterable[str]) -> None:
    """Start a process that compiles the kernels ``symbols`` of the package at ``root``.

    With several pytest workers, only the first worker starts the process. A test that needs a library waits for the
    process, and then finds the library in the cache.
    """
    kernels = list(symbols)
    first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    if kernels and first and not _running:
        command = [sys.executable, "-c", PROGRAM, str(root), *kernels]
        quiet = subprocess.DEVNULL
        _running.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True))


def stop() -> None:
    """End the process and the compilers that it runs. Called at the end of the test session."""
    while _running:
        process = _running.pop()
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
