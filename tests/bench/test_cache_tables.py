"""The tables of docs/compressed_caches.md are what the scripts below benches/ print."""

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "compressed_caches.md").read_text("utf-8")


@functools.cache
def script(name):
    """A script of benches/, as a module."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", ROOT / "benches" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(line):
    return [cell.strip() for cell in line.strip("| \n").split("|")]


def test_the_memory_table():
    memory = script("cache_memory")
    assert "\n".join(memory.table()) in PAGE, "run: python benches/cache_memory.py"
    assert memory.MODELS.keys() <= {path.stem for path in memory.SPECS.glob("*.yaml")}


def test_memory_by_hand():
    memory = script("cache_memory")
    llama = memory.smallest(memory.load(memory.SPECS / "llama2_7b.yaml"))
    assert llama.token_bytes == 512 << 10  # 32 layers, 32 heads of 128, K and V in 2 bytes
    assert llama.room == int(34_057_748_480 * 0.9) - 13_480_000_000
    qwen = memory.smallest(memory.load(memory.SPECS / "qwen36.yaml"))
    assert (qwen.rank.tensor_parallel, qwen.rank.num_kv_heads) == (2, 2)
    assert qwen.compressed_bytes == 16 * 2 * 2 * 256 == qwen.token_bytes // 2


def test_the_error_table():
    """Its headings, and each figure within a tenth: another torch draws the same numbers, and sums them otherwise."""
    found = [cells(line) for line in script("cache_error").table()]
    start = PAGE.index("| keys |")
    written = [cells(line) for line in PAGE[start:].splitlines()[: len(found)]]
    assert [row[0] for row in found] == [row[0] for row in written] and found[0] == written[0]
    for here, there in zip(found[2:], written[2:]):
        assert [float(cell) for cell in here[1:]] == pytest.approx([float(cell) for cell in there[1:]], rel=0.1)


def test_the_advice_is_what_the_table_says():
    error = script("cache_error")
    for make in (error.normal, error.outliers, error.rotated):
        found = error.errors(make)
        per_head = {dtype: found[dtype, "scale per head"] for dtype in error.DTYPES}
        assert per_head["fp8_e4m3"] < 0.6 * per_head["fp8_e5m2"]
        assert per_head["int8"] < 1.1 * per_head["fp8_e4m3"]
        assert found["auto", ""] < 0.1 * min(per_head.values())
    different = error.errors(error.rotated)
    assert different["int8", "scale per head"] < 0.3 * different["int8", "one scale"]
