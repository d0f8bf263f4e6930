"""What a CUDA call costs on the host, in µs of CPU time: checks, choice, arguments, and all of it.

    python benches/host_cost.py

Needs g++ and torch, no GPU. A function that returns at once replaces the kernel's entry function. Each figure is the
best of five repetitions.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

PACKAGE = Path(__file__).resolve().parents[1] / "generated"
CALLS, REPETITIONS = 2000, 5


def load() -> ModuleType:
    """The generated package, by its path."""
    spec = importlib.util.spec_from_file_location("pav2_host_cost", PACKAGE / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def microseconds(function: Callable[[], object]) -> float:
    """The CPU time of a call."""
    best = float("inf")
    for _ in range(REPETITIONS):
        start = time.process_time()
        for _ in range(CALLS):
            function()
        best = min(best, time.process_time() - start)
    return best / CALLS * 1e6


def main() -> None:
    """Print the parts of a call, and the whole."""
    package = load()
    check, cases, library = (
        importlib.import_module(f"{package.__name__}.runtime.{name}") for name in ("check", "testing.cases", "library")
    )
    row: Any = next(row for row in package.operator.table.rows if row.cuda and not row.key.modification)
    loaded = library.Library(library.build(library.kernels_of([row], PACKAGE), "host"))
    nothing = ctypes.CDLL(None)["strnlen"]  # of at most 0 characters, as the stream is null: it returns 0
    loaded._functions[row.symbol] = nothing
    package.operator.kernels.libraries[False] = loaded
    call = cases.make(cases.Case(row.key, row.partition_size, (33, row.partition_size + 1)))
    key, layout = package.operator.check(call, row.key.kv_cache_dtype)
    size = (len(call.seq_lens), call.max_seq_len, call.key_cache.shape[1], row.partition_size, "cpu")

    def whole() -> None:
        package.paged_attention_v2(
            *(call.out, *call.scratch, call.query, call.key_cache, call.value_cache, call.key_cache.shape[1]),
            *(call.scale, call.block_tables, call.seq_lens, key.block_size, call.max_seq_len, call.alibi_slopes),
            *(key.kv_cache_dtype, call.k_scale, call.v_scale),
            backend="cuda",
            partition_size=row.partition_size,
        )

    parts: dict[str, Callable[[], object]] = {
        "checks, of a new layout": lambda: check.check(call, key.kv_cache_dtype),
        "checks, of a known layout": lambda: package.operator.check(call, key.kv_cache_dtype),
        "choice of the kernel": lambda: package.operator.table.choose(key, "cuda", *size),
        "arguments and launch": lambda: loaded.launch(row, call, layout=layout),
        "the whole call": whole,
    }
    with torch.inference_mode():
        for name, function in parts.items():
            function()
            print(f"{name:28} {microseconds(function):6.1f} µs")


if __name__ == "__main__":
    main()
