"""Tuning files that someone changed: refused in one line with the place, or figures of the form that is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pav2gen.errors import UserError
from pav2gen.family.spec import variants
from pav2gen.reading.spec_file import parse as parse_spec
from pav2gen.reading.tuning_file import parse
from tests.mutants import text_mutants

SPEC = b"""\
schema: 1
name: tiny
target: bi-v100
model: {num_heads: 4, num_kv_heads: 2, max_seq_len: 2048}
axes: {head_size: 64, gqa_ratio: 2, partition_size: [64, 128]}
"""

TUNING = """\
schema: 1
spec: tiny
device: "cpu"
date: "2026-11-29T21:43:32Z"
command: "pav2gen tune specs/tiny.yaml"
about: "a processor, 2 threads"
versions: {pav2gen: "0.1.0", torch: "2.1.0"}
rounds: 7
runs: 3
kernels:
  - key: {KEY}
    backend: torch
    kv_heads: 2
    rows:
      - {num_seqs: 1, max_seq_len: 1024, partition_size: 64, ms: {64: 0.5, 128: 0.75}, spread: 0.0123}
      - {num_seqs: 8, max_seq_len: 1024, partition_size: 128, ms: {64: 2.5, 128: 1.75}, spread: 0.01}
    noisy:
      - {num_seqs: 2, max_seq_len: 512, ms: {64: 0.5, 128: 0.75}, because: "the runs differ by 12 %"}
"""


def test_mutants(request: pytest.FixtureRequest) -> None:
    count = 5000 if request.config.getoption("--full") else 300
    spec, path = parse_spec(SPEC, "specs/tiny.yaml"), Path("specs/tuning/tiny.cpu.yaml")
    key = variants(spec)[0].key
    fields = ", ".join(
        f"{name}: {'null' if value is None else str(value).lower()}" for name, value in key._asdict().items()
    )
    data = TUNING.replace("{KEY}", f"{{{fields}}}").encode()
    assert len(parse(data, path, spec).rows) == 2
    seen = {"refused": 0, "read": 0}
    for mutant in text_mutants(data, count):
        try:
            tuning = parse(mutant, path, spec)
        except UserError as error:
            assert "\n" not in str(error) and str(error).startswith("specs/tuning/tiny.cpu.yaml:")
            seen["refused"] += 1
            continue
        assert all(row.key == key and row.partition_size in (64, 128) for row in tuning.rows)
        seen["read"] += 1
    assert min(seen.values()) > count // 20
