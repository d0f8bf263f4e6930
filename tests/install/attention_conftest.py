"""The conftest of a run of vLLM's own tests/kernels/test_attention.py on the CPU, against an installed operator.

Copied, with vLLM's files, into a folder of its own. Of the tests of the decode operators those of V2 are run whose
shapes are served, each EVERY-th of them, on the CPU, with caches and lengths that a CPU can hold.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

sys.path.insert(0, os.environ["STUBS"])
from stubs import Kernels, Stub, stub_vllm

KERNELS = Kernels()
LONGEST = 1100  # tokens: a little more than two of vLLM's partitions
NUM_BLOCKS = 64
SHAPE = ("head_size", "block_size", "dtype", "kv_cache_dtype", "use_alibi")

stub_vllm(os.environ["TREE"], KERNELS)
for name in ("psutil", "xformers", "xformers.ops", "xformers.ops.fmha", "xformers.ops.fmha.attn_bias"):
    sys.modules.setdefault(name, Stub(name))
ops = importlib.import_module("vllm._custom_ops")
ops.get_max_shared_memory_per_block_device_attribute = lambda device: 4 * (LONGEST + 512)  # type: ignore[attr-defined]
utils = sys.modules["tests.kernels.utils"] = ModuleType("tests.kernels.utils")
torch.set_default_device = lambda device: None  # the CPU is the default; being told so slows every call threefold
utils.opcheck = lambda *args, **kwargs: None  # type: ignore[attr-defined]  # of the operator that is not called


pav2 = importlib.import_module("vllm.attention.ops.pav2")
if os.environ["PAV2_BACKEND"] == "cuda":
    pav2.load("host")


def served(query_heads: int, kv_heads: int, head_size: int, block_size: int, dtype: Any, kv: str, alibi: bool) -> bool:
    """Whether a case is vLLM's to skip, or one of a kernel that was built."""
    skipped = kv == "fp8" and head_size % 16 != 0 and os.environ["PAV2_BACKEND"] == "torch"
    return skipped or bool(pav2.supports(query_heads, kv_heads, head_size, block_size, dtype, kv, alibi))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the cases of V2, on the CPU."""
    wanted = [
        item
        for item in items
        if item.originalname == "test_paged_attention"
        and item.callspec.params["version"] == "v2"
        and item.callspec.params["device"] == "cuda:0"
        and served(*item.callspec.params["num_heads"], *map(item.callspec.params.get, SHAPE))
    ][:: int(os.environ.get("EVERY", "1"))]
    for item in wanted:
        item.callspec.params["device"] = "cpu"
        item.module.NUM_BLOCKS = NUM_BLOCKS
    items[:] = wanted


@pytest.fixture(autouse=True)
def ours() -> Any:
    """The operator that answers is the installed one: vLLM's own is never called."""
    before = len(KERNELS.called)
    yield
    assert KERNELS.called[before:] == [], "vLLM's own kernel was called"
