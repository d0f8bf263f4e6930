"""Starts a process that compiles the libraries for a test session while the first tests already run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: The Python program that the process runs. Its arguments are the package's folder, and a JSON list with an item for
#: each library: [the warp size, whether the build is checked, the symbols of the kernels]. The program does not import
#: torch.
PROGRAM = """
import importlib, json, sys, types
from pathlib import Path
root, libraries = sys.argv[1:]
sys.modules["pav2"] = package = types.ModuleType("pav2")
package.__path__ = [root]
library = importlib.import_module("pav2.runtime.library")
kernels = library.kernels_of(library.package_rows(Path(root)), Path(root))
for warp_size, checked, symbols in json.loads(libraries):
    library.build_for_tests({symbol: kernels[symbol] for symbol in symbols}, warp_size, checked)
"""

_running: list[subprocess.Popen[bytes]] = []


def start(root: Path, libraries: Mapping[tuple[int, bool], Sequence[str]]) -> None:
    """Start a process that compiles the libraries that the tests of the package in the folder ``root`` need.

    If pytest runs several workers, only the first worker starts the process. A test waits until the process has
    compiled the library that the test needs, and then loads the library from the cache.

    libraries: for each library, the names of its kernels' entry functions. The keys are pairs (warp size, whether the
    build is checked). The libraries are in the order in which the tests need them.
    """
    first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    if libraries and first and not _running:
        wanted = json.dumps([(*kind, list(symbols)) for kind, symbols in libraries.items()])
        command = [sys.executable, "-c", PROGRAM, str(root), wanted]
        quiet = subprocess.DEVNULL
        _running.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True))


def stop() -> None:
    """End the process that ``start`` started, and the compilers that the process runs.

    The test session calls this function at its end.
    """
    while _running:
        process = _running.pop()
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
