"""An install or uninstall that is killed at any moment: whatever stands works, and the next run repairs it."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pav2gen.install.apply import Outcome
from pav2gen.install.editing.patch import HOOKS
from pav2gen.install.payload.structure import DECODE, OPS
from pav2gen.install.undo import uninstall

from .conftest import ALPHA, BETA, checksums, make_package

Put = Callable[..., Outcome]


def killed(action: Callable[[], object], stride: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Run ``action`` in processes that die before a rename or removal, ever later by ``stride``, until one lives."""
    for step in range(1, 1000, stride):
        if not (child := os.fork()):
            left = iter(range(step - 1))

            def dying(function: Callable[..., object], left: Iterator[int] = left) -> Callable[..., object]:
                def call(*args: object, **kwargs: object) -> object:
                    if next(left, None) is None:
                        os._exit(9)
                    return function(*args, **kwargs)

                return call

            monkeypatch.setattr(os, "replace", dying(os.replace))
            monkeypatch.setattr(os, "unlink", dying(os.unlink))
            try:
                action()
            except BaseException:
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9)
        if code == 0:
            return
        yield step


def works(tree: Path) -> None:
    """Each source is Python, none calls what is not there, and the table names no kernel that is not there."""
    package = tree / "vllm/attention/ops/pav2"
    for path in (OPS, DECODE):
        text = (tree / "vllm" / path).read_text()
        ast.parse(text)
        if HOOKS in text:
            assert all((package / name).is_file() for name in ("__init__.py", "hooks.py", "dispatch.py"))
    table = package / "dispatch.py"
    for module in re.findall(r'"((?:beta|zeta)\.torch[^"]+)"', table.read_text() if table.is_file() else ""):
        assert (package / f"{module.replace('.', '/')}.py").is_file() or HOOKS not in text


@pytest.mark.parametrize("action", ["fresh", "update", "uninstall"])
def test_a_kill_leaves_a_tree_that_works_and_that_the_next_run_repairs(
    action: str,
    vllm: Callable[..., Path],
    put: Put,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    small = [spec.replace("[256, 512]", "512").replace("alpha", "zeta") for spec in (ALPHA, BETA)]
    generated = make_package(folder, *small)
    start = vllm("0.4.3", name="start")
    original = checksums(start)
    if action == "update":
        put(start, "beta", generated=generated, min_seq_len=7)
    if action == "uninstall":
        put(start, "zeta", generated=generated)
    goal = tmp_path / "goal"
    shutil.copytree(start, goal)
    put(goal, "zeta", generated=generated)
    tree = tmp_path / "killed"

    def run() -> object:
        return uninstall(tree) if action == "uninstall" else put(tree, "zeta", generated=generated)

    shutil.copytree(start, tree)
    steps = 0
    every = 1 if request.config.getoption("--full", default=False) or action == "update" else 6
    for steps in killed(run, every, monkeypatch):
        works(tree)
        if steps // every % 2:
            put(tree, "zeta", generated=generated)
            assert checksums(tree) == checksums(goal)
        uninstall(tree)
        assert checksums(tree) == original
        shutil.rmtree(tree)
        shutil.copytree(start, tree)
    assert steps > 8
