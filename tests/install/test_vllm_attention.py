"""vLLM's own tests/kernels/test_attention.py, on the CPU, against an installed operator: its V2 cases.

They run in a folder of their own, with vLLM's files as they are; ``attention_conftest`` says what is reduced. By
default a sample of the cases runs at short lengths. Under ``--full`` all cases of PyTorch run at the full length.

These tests are weak. An operator that ignores the query passes them. With an fp8 cache their reference converts K byte
for byte between two layouts, so that most elements of its K are another element, and the keys do not matter either.
``test_decode`` and the kernels' own tests measure the result.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import make_package
from .vllm_own_tests import run

#: The shapes of vLLM's tests: heads (40, 40) and (64, 8), and of the other axes each of these values.
SPEC = """\
schema: 1
name: vllm_tests
target: bi-v100
model: {{num_heads: 64, num_kv_heads: 8, max_seq_len: 32768}}
axes:
  head_size: {head_size}
  gqa_ratio: [1, 8]
  block_size: {block_size}
  dtype: {dtype}
  kv_cache_dtype: {kv_cache_dtype}
features: {{alibi: [false, true]}}
exclude: {exclude}
backends: {backends}
dispatch: {{min_seq_len: 0}}
limits: {{max_variants: 400}}
"""
ALL = {
    "head_size": "[64, 80, 96, 112, 120, 128, 192, 256]",
    "block_size": "[16, 32]",
    "dtype": "[float16, bfloat16, float32]",
    "kv_cache_dtype": "[auto, fp8]",
    "exclude": "[{when: {head_size: 120, kv_cache_dtype: fp8}, because: a grain holds 16 values; vLLM skips it too}]",
    "backends": "[torch]",
}
#: What a compiler makes in seconds, and the host runtime executes: vLLM's cases of these shapes.
FEW = {
    "head_size": "[64]",
    "block_size": "[16]",
    "dtype": "float16",
    "kv_cache_dtype": "auto",
    "exclude": "[]",
    "backends": "[torch, cuda]",
}
CASES = {"torch": 384, "cuda": 4}
SKIPPED = 24  # vLLM's own: head size 120 with an fp8 cache
EVERY = {"torch": 37, "cuda": 1}  # the sample: each 37th case, as no axis divides 37
#: Tokens of the longest sequence, and pages of the cache.
WHOLE = {"LONGEST": "7680", "NUM_BLOCKS": "500"}
SHORT = {"torch": {"LONGEST": "1100", "NUM_BLOCKS": "64"}, "cuda": {"LONGEST": "560", "NUM_BLOCKS": "64"}}


@pytest.mark.parametrize("backend", ["torch", "cuda"])
def test_vllms_own_attention_tests_pass(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    whole = request.config.getoption("--full", default=False) and backend == "torch"
    every = 1 if whole else EVERY[backend]
    package = make_package(tmp_path, SPEC.format(**(ALL if backend == "torch" else FEW)))
    sizes = WHOLE if whole else SHORT[backend]
    counts, said = run(
        tmp_path, package, "test_attention.py", "attention_conftest.py",
        {"EVERY": str(every), "PAV2_BACKEND": backend, **sizes}, tests=backend == "cuda",
    )  # fmt: skip
    (checked,) = re.findall(r"^opcheck: (\d+)$", said, re.M)
    print(f"vLLM's own attention tests, V2, {backend}: {counts}")
    assert set(counts) <= {"passed", "skipped"}
    assert sum(counts.values()) == len(range(0, CASES[backend], every))
    assert counts.get("skipped", 0) <= (SKIPPED if every == 1 else 3)
    assert int(checked) > 0  # opcheck, of the cases with head size 64 and block size 16
