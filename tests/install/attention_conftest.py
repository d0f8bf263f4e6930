"""The conftest of a run of vLLM's own tests/kernels/test_attention.py on the CPU, against an installed operator.

It is copied, with vLLM's files, into a folder of its own. Of the tests of the decode operators those of V2 are run that
have a shape with a kernel, on the CPU. The environment says how much: each EVERY-th case, sequences of up to LONGEST
tokens, and caches of NUM_BLOCKS pages. vLLM's own tests have 4,321 pages. Their lengths follow from the shared memory
of the device: 7,680 tokens for the 32 KiB that the BI-V100 fork reports.

vLLM's ``opcheck`` calls ``torch.library.opcheck`` on the operator that its kernels were registered as. Here it checks
the operator of the installed package, with the arguments that this gets from the same call.
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
LONGEST, NUM_BLOCKS = int(os.environ["LONGEST"]), int(os.environ["NUM_BLOCKS"])
SHAPE = ("head_size", "block_size", "dtype", "kv_cache_dtype", "use_alibi")

stub_vllm(os.environ["TREE"], KERNELS)
for name in ("psutil", "xformers", "xformers.ops", "xformers.ops.fmha", "xformers.ops.fmha.attn_bias"):
    sys.modules.setdefault(name, Stub(name))
ops = importlib.import_module("vllm._custom_ops")
ops.get_max_shared_memory_per_block_device_attribute = lambda device: 4 * (LONGEST + 512)  # type: ignore[attr-defined]
utils = sys.modules["tests.kernels.utils"] = ModuleType("tests.kernels.utils")
torch.set_default_device = lambda device: None  # the CPU is the default; being told so slows every call threefold

pav2 = importlib.import_module("vllm.attention.ops.pav2")
if os.environ["PAV2_BACKEND"] == "cuda":
    pav2.load("host")


def opcheck(vllms_own: object, arguments: tuple[Any, ...], cond: bool = True, **options: Any) -> None:
    """torch.library.opcheck of our operator on the arguments that a call with ``arguments`` gives it."""
    if cond:
        given: list[Any] = []
        decode = pav2._decode
        pav2._decode = lambda *passed: given.extend(passed)
        try:
            pav2.paged_attention_v2(*arguments)
        finally:
            pav2._decode = decode
        torch.library.opcheck(pav2.operator.op, tuple(given), **options)
        CHECKED.append(len(given))


CHECKED: list[int] = []
utils.opcheck = opcheck  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many calls opcheck has checked."""
    terminalreporter.write_line(f"opcheck: {len(CHECKED)}")


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
