"""What the tests of bench, tune and report share: a small spec, its selection, and small measurements of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pav2gen.bench.measuring import bench as benching
from pav2gen.reading.selection import load

SPEC = """\
schema: 1
name: tiny
about: a small family <for> tests
target: bi-v100
model: {num_heads: 4, num_kv_heads: 2, max_seq_len: 2048, tensor_parallel: [1, 2]}
axes:
  head_size: 64
  gqa_ratio: 2
  partition_size: [64, 128]
  dtype: [float16, float32]
exclude:
  - when: {partition_size: 128, dtype: float32}
    because: one is enough
backends: [torch, cuda]
dispatch: {min_seq_len: 128}
limits: {workspace_mib: 8}
"""

CPU = torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def cache_bytes():
    """A cache of 1 MiB, whatever this machine has: inputs of twice a server's take long to make. It is what tells."""
    tells = benching.machine.cache_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benching.machine, "cache_bytes", lambda device: 1 << 20)
        yield tells


@pytest.fixture
def spec_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``specs/tiny.yaml`` in a working folder of its own, which is the current one."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "tiny.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return Path("specs/tiny.yaml")


@pytest.fixture
def selection(spec_path: Path):
    """The whole of the small spec."""
    return load([spec_path])[0]


def options(**changes):
    """A bench of two lengths, as short as it can be."""
    given = {"device": CPU, "seq_lens": (100, 300), "num_seqs": (2,), "rounds": 3, "warmups": 1}
    return benching.BenchOptions(**{**given, **changes})


@pytest.fixture(scope="session")
def document(tmp_path_factory):
    """A bench of the small spec."""
    path = tmp_path_factory.mktemp("specs") / "tiny.yaml"
    path.write_text(SPEC)
    return benching.bench(load([path])[0], options(command="pav2gen bench specs/tiny.yaml"))
