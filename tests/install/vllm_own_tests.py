"""Runs a file of vLLM's own tests on the CPU, in a folder of its own, against a tree with an installed package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pav2gen.install.apply import InstallOptions, install
from pav2gen.install.package_contents import Choice

from .vllm_files import cached


def run(
    folder: Path, package: Path, test: str, conftest: str, environment: Mapping[str, str],
    edits: Mapping[str, str] | None = None, tests: bool = False, writer: str = "auto",
) -> tuple[dict[str, int], str]:  # fmt: skip
    """Run the test file ``test`` of vLLM 0.6.3 with a conftest of this folder: the number of each outcome, the output.

    edits: texts of the test file, and what stands there instead. tests, writer: how the package is installed.
    """
    source, here = cached("0.6.3.post1"), Path(__file__).parent
    shutil.copytree(source / "vllm", folder / "tree/vllm")
    install(folder / "tree", InstallOptions(package, Choice(tests=tests), writer=writer, python=""))
    shutil.copytree(source / "tests/kernels", folder / "run/tests/kernels")
    (folder / "run/tests/__init__.py").touch()
    shutil.copy(here / conftest, folder / "run/conftest.py")
    file = folder / "run/tests/kernels" / test
    for old, new in (edits or {}).items():
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    known = {
        "STUBS": str(here),
        "TREE": str(folder / "tree"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",  # threads that wait by spinning take ten times as long on a busy machine
    }
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", ".", str(file)]
    done = subprocess.run(
        command, cwd=folder / "run", env={**os.environ, **known, **environment}, capture_output=True, text=True
    )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)(?=,| in )", last)}, done.stdout
