"""The examples of docs/simt.md do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "simt.md"
ROOT = PAGE.parents[1]


@pytest.fixture
def example(tmp_path: Path, cache: Path):
    """The page's blocks of a language, its CUDA sources written to files; and a way to run Python there."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for language, text in blocks:
        if language == "cuda":
            (tmp_path / text.split("\n", 1)[0].removeprefix("// ")).write_text(text)

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SIMT_CACHE": str(cache)}
        return subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)

    return tmp_path, [text for language, text in blocks if language in ("python", "text")], start


def test_the_program(example):
    folder, blocks, start = example
    done = start("-m", "pav2gen.runtime.simt", "row_sums.cu")
    assert done.returncode == 1 and done.stdout.startswith("3067 3067: no error\n"), done.stdout + done.stderr
    shown = next(b for b in blocks if b.startswith("race"))
    assert shown in done.stdout
    source = (folder / "row_sums.cu").read_text()
    (folder / "row_sums.cu").write_text(source.replace("    sums[blockIdx.x]", "    if (t == 0) sums[blockIdx.x]"))
    done = start("-m", "pav2gen.runtime.simt", "row_sums.cu")
    assert done.returncode == 0 and "no findings" in done.stdout
    words = done.stdout.split()
    table = next(b for b in blocks if b.startswith("buffer")).split()
    assert set(table) <= set(words)


def test_the_python_example(example):
    _, blocks, start = example
    done = start("-c", next(b for b in blocks if b.startswith("import")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("scale.cu:6") == 4
