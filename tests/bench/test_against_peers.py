"""The bench that shows what the kernels must reach: what it requires, and that it tells what is missed."""

import importlib.util
from pathlib import Path

import pytest

from pav2gen.bench.measuring.clock import Times
from pav2gen.bench.reporting.measurement_rows import Measurement
from pav2gen.reading.selection import load

BENCH = Path(__file__).resolve().parents[2] / "benches" / "against_peers.py"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("against_peers", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def point(dtype, num_seqs, seq_len, ours, **others):
    timed = [{"name": name, "because": "", "median_ms": ms} for name, ms in others.items()]
    kernel = {"name": "torch p512", "because": "", "symbol": "k", "backend": "torch", "median_ms": ours}
    values = {"num_seqs": num_seqs, "seq_len": seq_len, "chosen": {"torch": "k"}, "contestants": [kernel, *timed]}
    return Measurement("cpu", {"key": {"dtype": dtype}, **values})


@pytest.mark.parametrize(
    "measured, kept",
    [
        (point("float16", 1, 100_000, 10.0, seed=600.0, sdpa=9.6), [True, True]),
        (point("float16", 1, 100_000, 10.0, seed=599.0, sdpa=9.5), [False, False]),
        (point("bfloat16", 1, 100_000, 10.0, seed=699.0, sdpa=20.0), [False, True]),
        (point("float32", 8, 8192, 10.0, seed=300.0, sdpa=10.0), [True, True]),
        (point("float32", 8, 32768, 10.0, sdpa=10.0), [True]),
        (point("float16", 8, 8192, 10.0, sdpa=10.0), [False, True]),  # a ratio that was not measured is missed
        (point("float16", 1, 16, 10.0, sdpa=4.1), [True]),
        (point("float16", 1, 511, 10.0, sdpa=3.9), [False]),
        (point("float16", 1, 512, 10.0, sdpa=4.1), [False]),
        (point("bfloat16", 8, 1000, 10.0, sdpa=20.0, vllm=6.7), [True, True]),
        (point("bfloat16", 8, 999, 10.0, sdpa=20.0, vllm=1.0), [True]),  # nothing is required of so short a call
        (point("bfloat16", 1, 32768, 10.0, sdpa=20.0, vllm=9.0), [True, False]),
        (point("float32", 1, 32768, 10.0, sdpa=20.0, vllm=9.99), [True, False]),
        (point("float16", 1, 32768, 10.0, sdpa=20.0, vllm=1.0), [True]),  # vLLM's kernel has no float16 on a CPU
    ],
)
def test_what_is_required(peers, measured, kept, capsys):
    verdicts = list(peers.ratios(measured))
    assert [verdict.kept for verdict in verdicts] == kept
    assert peers.show("title", verdicts) == all(kept)
    assert capsys.readouterr().out.count("MISSED") == kept.count(False)


def test_every_required_ratio_is_measured(peers):
    measured = {(s, length): against for seqs, lengths, against in peers.PROBLEMS for s in seqs for length in lengths}
    long = {(1, 8192), (1, 32768), (1, 100_000), (8, 8192), (8, 32768)}
    short = {(1, 16), (32, 16), (64, 16), (64, 128), (1, 512), (1, 1000), (8, 1000), (64, 1000)}
    assert long | short <= set(measured)
    assert all("sdpa" in against for against in measured.values())
    assert all("seed" in measured[num_seqs, length] for _, num_seqs, length in peers.AGAINST_SEED)


def test_a_ragged_batch_is_held_to_its_longest_sequence(peers, tmp_path, monkeypatch):
    path = tmp_path / "peers.yaml"
    path.write_text(peers.SPEC)
    chosen = load([path], ["dtype=float16"])[0]
    monkeypatch.setattr(peers, "RAGGED", (600, 16, 16))
    lengths = []

    def interleave(runs, inputs, *rest):
        for name in runs:
            runs[name](next(inputs))
        return {"ragged": Times((1.31,)), "alone": Times((1.0,))}

    operate = lambda package, call, row, backend: lengths.append(call.seq_lens.tolist())  # noqa: E731
    monkeypatch.setattr(peers, "interleave", interleave)
    monkeypatch.setattr(peers, "operate", operate)
    (verdict,) = peers.ragged(chosen, 3)
    assert lengths == [[600, 16, 16], [600]] and not verdict.kept
    monkeypatch.setattr(peers, "RAGGED_LIMIT", 1.31)
    assert next(peers.ragged(chosen, 3)).kept


def test_workspace_and_calls_are_held_to_the_plan(peers, tmp_path, monkeypatch):
    path = tmp_path / "peers.yaml"
    path.write_text(peers.SPEC)
    chosen = load([path], ["dtype=float16", "partition_size=512"])[0]
    monkeypatch.setattr(peers, "SHAPES", ((2, 600),))
    workspace, calls = peers.costs(chosen)
    assert workspace.kept and calls.kept and "workspace <= 64 MiB" in workspace.what
    monkeypatch.setattr(peers, "launches", lambda contestant, call: 1)
    monkeypatch.setattr(peers, "workspace_bytes", lambda contestant, call, device: 65 << 20)
    assert [verdict.kept for verdict in peers.costs(chosen)] == [False, False]
