"""The PyTorch writers of a prompt against ``index_copy_`` of as many bytes, in CPU time, and their workspace.

    python benches/cache_write.py

8,192 tokens of Qwen3.6-27B: 4 KV heads of 256, float16. ``index_copy_`` writes the same number of bytes, of K and of V,
into rows of a cache whose tokens lie side by side. Both run in one thread, so that threads that wait for each other
don't count. Each figure is the least of seven runs, in milliseconds, and the ratio to ``index_copy_``.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

PACKAGE = Path(__file__).resolve().parents[1] / "generated"
TOKENS, HEADS, SIZE, PAGE, RUNS = 8192, 4, 256, 16, 7


def load() -> ModuleType:
    """The generated package, by its path."""
    spec = importlib.util.spec_from_file_location("pav2_cache_write", PACKAGE / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def least_ms(run: Callable[[], Any]) -> float:
    """The least CPU time of ``run``, in milliseconds."""
    run()
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def main() -> None:
    package = load()
    torch.set_num_threads(1)
    blocks = TOKENS // PAGE + 1
    fused = torch.randn(TOKENS, 3 * HEADS * SIZE).half()
    key, value = (part.unflatten(1, (HEADS, SIZE)) for part in fused.split(HEADS * SIZE, 1)[1:])
    slots = torch.randperm(blocks * PAGE)[:TOKENS]
    for kv_cache_dtype, stored in (("auto", torch.float16), ("fp8", torch.uint8), ("int8", torch.int8)):
        x = 16 // torch.empty(0, dtype=stored).element_size()
        key_cache = torch.zeros(blocks, HEADS, SIZE // x, PAGE, x, dtype=stored)
        value_cache = torch.zeros(blocks, HEADS, SIZE, PAGE, dtype=stored)
        rows, cache = (
            torch.zeros(TOKENS, HEADS * SIZE, dtype=stored),
            torch.zeros(blocks * PAGE, HEADS * SIZE, dtype=stored),
        )
        copy = 2 * least_ms(lambda: cache.index_copy_(0, slots, rows))  # noqa: B023
        for name, order in (("slots in order", torch.arange(TOKENS)), ("slots at random", slots)):
            call = (key, value, key_cache, value_cache, order, kv_cache_dtype, 0.03, 0.03)
            own = least_ms(lambda: package.reshape_and_cache(*call))  # noqa: B023
            print(f"{kv_cache_dtype:5} {name:16} {own:7.1f} ms  index_copy_ {copy:7.1f} ms  ratio {own / copy:.2f}")


if __name__ == "__main__":
    main()
