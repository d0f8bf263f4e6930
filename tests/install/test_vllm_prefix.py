"""vLLM's own tests of prefills with a cached prefix pass through the installed extend kernels, on the CPU.

vLLM 0.6.3's tests/kernels/test_prefix_prefill.py has 216 cases for one device: 72 of them have a head size of 24, which
no kernel here and none of vLLM's decode kernels has. By default every 29th of the others is run, with short sequences;
``--full`` runs all of them, with sequences of up to 400 tokens in place of 2,048. Two cases are also run with the CUDA
kernels, on the host runtime.

These tests are weak. Their values lie within 1e-3 of zero, and so does the error that they allow for an fp8 cache.
``test_life`` and the kernels' own tests measure the result.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import make_package
from .vllm_own_tests import run

SPEC = """\
schema: 1
name: vllm_prefix
target: bi-v100
model: {num_heads: 64, num_kv_heads: 8, max_seq_len: 32768}
axes: {head_size: [128, 96], gqa_ratio: [1, 8, 64], block_size: 32, kv_cache_dtype: [auto, fp8, fp8_e5m2]}
features: {alibi: [false, true], sliding_window: [null, 16, 64, 128, 256, 512, 2048]}
exclude:
  - {when: {alibi: true, sliding_window: [16, 64, 128, 256, 512, 2048]}, because: vLLM tests no window with ALiBi}
operators: [extend, cache]
backends: [torch]
limits: {max_variants: 400}
"""
#: What a compiler makes in seconds, and the host runtime executes.
CUDA = {
    "head_size: [128, 96], gqa_ratio: [1, 8, 64]": "head_size: 96, gqa_ratio: 8",
    "kv_cache_dtype: [auto, fp8, fp8_e5m2]": "kv_cache_dtype: auto",
    "alibi: [false, true], sliding_window: [null, 16, 64, 128, 256, 512, 2048]": "sliding_window: [null, 16]",
    SPEC[SPEC.index("exclude") : SPEC.index("operators")]: "",
    "backends: [torch]": "backends: [torch, cuda]",
}
CASES, SERVED = 216, {"torch": 144, "cuda": 2}
EVERY = {"torch": 29, "cuda": 1}  # no axis divides 29
#: The most new tokens, and the most tokens before them, of a sequence; the number of sequences.
SHORT, LONG = {"torch": (80, 3), "cuda": (24, 2)}, (200, 10)


@pytest.mark.parametrize("backend", ["torch", "cuda"])
def test_vllms_own_prefix_tests_pass(tmp_path: Path, request: pytest.FixtureRequest, backend: str) -> None:
    whole = request.config.getoption("--full", default=False) and backend == "torch"
    every, (longest, batch) = (1, LONG) if whole else (EVERY[backend], SHORT[backend])
    edits = {"MAX_SEQ_LEN = 1024": f"MAX_SEQ_LEN = {longest}", "MAX_CTX_LEN = 1024": f"MAX_CTX_LEN = {longest}"}
    edits["BS = 10"] = f"BS = {batch}"
    spec = SPEC
    for old, new in CUDA.items() if backend == "cuda" else ():
        assert old in spec
        spec = spec.replace(old, new)
    counts, said = run(
        tmp_path, make_package(tmp_path, spec), "test_prefix_prefill.py", "prefix_conftest.py",
        {"EVERY": str(every), "PAV2_BACKEND": backend}, edits, writer="always", tests=backend == "cuda",
    )  # fmt: skip
    print(f"vLLM's own prefix tests: {counts}")
    assert re.findall(r"^cases: (\d+)$", said, re.M) == [str(CASES)]
    assert counts == {"passed": len(range(0, SERVED[backend], every))}
