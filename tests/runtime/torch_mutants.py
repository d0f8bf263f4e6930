"""Mutants in PyTorch: packages with one changed file each. Their generated tests must notice the change.

One process loads torch once. It forks for each mutant, and the child runs the mutant's tests up to the first failure.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from pav2gen.commands.build import BuildOptions, build

#: The file of a fault that is in the PyTorch kernel of its family.
KERNEL = "kernel"

#: Prints folder -> exit status of pytest. The arguments: the packages' parent, a pattern of test files, folders.
RUNNER = """
import gc, glob, json, os, sys
import pytest, torch

root, pattern, *folders = sys.argv[1:]
OPTIONS = ["-q", "-x", "--import-mode=importlib", "-p", "no:cacheprovider", "--assert=plain", "--tb=native"]
OPTIONS += ["-p", "no:unraisableexception", "-p", "no:threadexception"]  # they collect garbage five times
codes = {}
gc.freeze()
gc.disable()
for folder in folders:
    child = os.fork()
    if child == 0:
        log = os.open(f"{root}/{folder}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        tests = sorted(glob.glob(f"{root}/{folder}/{pattern}"))
        here = f"{root}/{folder}"  # pytest would look at all files of the folders above
        code = pytest.main([*OPTIONS, "-c", os.devnull, "--rootdir", here, "--confcutdir", here, *tests])
        sys.stdout.flush()
        os._exit(code)
    codes[folder] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(codes))
"""


@dataclass(frozen=True)
class TorchFault:
    """One change: in ``file`` (``KERNEL`` is the PyTorch kernel of ``family``), ``old`` becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    family: str = "dense"


@dataclass(frozen=True)
class Verdict:
    """The exit status of pytest on a package, and the end of what it printed."""

    code: int
    said: str

    @property
    def passed(self) -> bool:
        """Every test passed."""
        return self.code == 0

    @property
    def failed(self) -> bool:
        """Tests ran, and one failed. An error before the first test is neither."""
        return self.code == 1


def verdicts(
    root: Path, specs: dict[str, str], faults: Sequence[TorchFault], kernels: str = "*.py", tests: str = "test_*.py"
) -> tuple[Verdict, list[Verdict]]:
    """The verdicts on the healthy package, and on each fault's mutant.

    specs: family -> text of its spec. kernels, tests: patterns of the kernel to change and of the test files to run.
    """
    paths = [root / f"{family}.yaml" for family in specs]
    for path, text in zip(paths, specs.values()):
        path.write_text(text)
    build(paths, BuildOptions(root / "healthy"))
    compileall.compile_dir(root / "healthy", quiet=2)  # once for all mutants
    folders = ["healthy", *(f"mutant{number}" for number in range(len(faults)))]
    for folder, fault in zip(folders[1:], faults):
        plant(fault, root / "healthy", root / folder, specs, kernels)
    command = [sys.executable, "-c", RUNNER, str(root), f"*/tests/{tests}", *folders]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    codes = json.loads(done.stdout)
    healthy, *mutants = (Verdict(codes[folder], (root / f"{folder}.log").read_text()[-3000:]) for folder in folders)
    return healthy, mutants


def plant(fault: TorchFault, healthy: Path, folder: Path, families: Collection[str], kernels: str) -> None:
    """A package with the fault's family alone, and the fault in it. The other files are links to the healthy ones."""
    others = {str(healthy / family) for family in families if family != fault.family}

    def ignored(parent: str, names: list[str]) -> set[str]:
        return {name for name in names if os.path.join(parent, name) in others or name == "simt"}

    shutil.copytree(healthy, folder, ignore=ignored, copy_function=os.link)
    (folder / "runtime" / "simt").symlink_to(healthy / "runtime" / "simt")
    file = folder / fault.file
    if fault.file == KERNEL:
        file = next((folder / fault.family / "torch_kernels").glob(kernels))
    text = file.read_text()
    assert fault.old in text, f"{fault.name}: {fault.old!r} is not in {file.name}"
    file.unlink()
    Path(cache_from_source(str(file))).unlink()  # it would count as current if the size and the second are the same
    file.write_text(text.replace(fault.old, fault.new))
    compile(file.read_text(), str(file), "exec")
