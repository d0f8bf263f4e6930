"""The bench that shows what the kernels must reach: what it requires, and that it tells what is missed."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

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


def short_point(ours, sdpa, dtype="bfloat16", num_seqs=1, seq_len=16, **others):
    """A short call; each contestant has its warm minimum, warm median and cold median, in ms."""
    timed = {"torch p512": ours, "sdpa": sdpa, **others}
    entries = [
        {"name": name, "because": "", "warm_min_ms": least, "warm_median_ms": median, "cold_median_ms": cold}
        for name, (least, median, cold) in timed.items()
        if cold
    ]
    entries[0]["symbol"] = "k"
    return {"dtype": dtype, "num_seqs": num_seqs, "seq_len": seq_len, "contestants": entries}


@pytest.mark.parametrize(
    "measured, kept",
    [
        (short_point((10, 99, 99), (4.1, 1, 1)), [True]),  # slower by the median, and when cold
        (short_point((10, 1, 1), (3.9, 99, 99)), [False]),
        (short_point((10, 99, 99), (9.6, 1, 1), seq_len=512), [True]),
        (short_point((10, 1, 1), (9.5, 99, 99), seq_len=1000), [False]),
        (short_point((10, 1, 1), (10, 1, 1), seq_len=1000, vllm=(6.7, 1, 1)), [True, True]),
        (short_point((10, 1, 1), (10, 1, 1), seq_len=1000, vllm=(6.6, 99, 99)), [True, False]),
        (short_point((10, 1, 1), (10, 1, 1), vllm=(1, 1, 1)), [True]),  # nothing is required of so short a call
        (short_point((10, 1, 1), (0, 0, 0)), [False]),  # a ratio that was not measured is missed
    ],
)
def test_short_calls_are_judged_by_their_warm_minima(peers, measured, kept):
    assert [verdict.kept for verdict in peers.short_ratios(measured)] == kept
    assert not list(peers.short_ratios(measured, ("sdpa", "vllm")))


def test_the_cold_ratio_stands_beside_the_warm_one(peers, capsys):
    (verdict,) = peers.short_ratios(short_point((10, 20, 40), (5, 40, 10)))
    assert peers.show("title", [verdict])
    assert "S=1 L=16     x sdpa, warm >= 0.4: 0.5 (cold 0.25)" in capsys.readouterr().out


def test_which_problems_are_short(peers):
    calls = peers.short_calls
    problem = lambda seq_len, kv_bytes: SimpleNamespace(seq_len=seq_len, kv_bytes=kv_bytes)  # noqa: E731
    assert calls.is_short(problem(1024, 64 << 20))
    assert not calls.is_short(problem(1025, 1)) and not calls.is_short(problem(16, (64 << 20) + 1))


@pytest.fixture
def logged(peers, monkeypatch):
    """What short_calls calls: names of contestants with the number of the input, and ``copy``."""
    calls, log = peers.short_calls, []
    monkeypatch.setattr(calls, "LOOP_SECONDS", 0.0)
    monkeypatch.setattr(calls.machine, "copy", lambda device, cache: (lambda call: log.append(("copy", cache)), 1))
    inputs = SimpleNamespace(count=3, call=lambda number: number, first=0)
    contestants = {name: lambda call, name=name: log.append((name, call)) for name in ("ours", "sdpa")}
    return log, calls.measure(contestants, inputs, 7)


def test_a_warm_loop_has_one_contestant_and_other_inputs_each_time(peers, logged):
    log, figures = logged
    calls = peers.short_calls
    loops = [[(name, number % 3) for number in range(calls.FEWEST_CALLS)] for name in ("ours", "sdpa")] * calls.LOOPS
    first_copy = log.index(("copy", 7))
    assert log[:first_copy] == [entry for loop in loops for entry in loop]
    assert len(figures["ours"].warm) == calls.LOOPS * (calls.FEWEST_CALLS - calls.FEWEST_CALLS // 5)


def test_a_copy_comes_before_each_cold_call(peers, logged):
    log, figures = logged
    cold = log[log.index(("copy", 7)) :]
    assert cold[::2] == [("copy", 7)] * len(cold[::2])
    assert [number for _, number in cold[1::2]] == [number % 3 for number in range(len(cold) // 2)]
    assert all(len(found.cold) == peers.short_calls.COLD_CALLS for found in figures.values())


def test_the_document_has_minima_and_medians(peers):
    figures = peers.short_calls.Figures(warm=(3.0, 1.0, 2.0), cold=(9.0, 7.0, 8.0))
    assert figures.document() == {
        "warm_min_ms": 1.0, "warm_median_ms": 2.0, "cold_min_ms": 7.0, "cold_median_ms": 8.0,
    }  # fmt: skip


@pytest.mark.parametrize("warm, code", [(0.41, 0), (0.39, 1)])
def test_a_part_of_a_run(peers, tmp_path, monkeypatch, capsys, warm, code):
    figures = peers.short_calls.Figures
    found = {"torch p512": figures((1.0, 1.2), (2.0,)), "sdpa": figures((warm, 0.5), (1.0,))}
    monkeypatch.setattr(
        peers.short_calls, "measure", lambda contestants, *rest: {name: found[name] for name in contestants}
    )
    path = tmp_path / "peers.json"
    assert peers.main(["--dtype", "bfloat16", "--only", "1x16", "--json", str(path)]) == code
    out = capsys.readouterr().out
    assert "short calls, warm" in out and "short calls, cold" in out and "ragged" not in out.lower()
    (point,) = json.loads(path.read_text())["short"]
    assert {entry["name"]: entry.get("warm_min_ms") for entry in point["contestants"]} == {
        "torch p512": 1.0, "sdpa": warm, "vllm": None,
    }  # fmt: skip


def test_parts_of_a_run_are_named(peers, capsys):
    assert peers.parts_of("1x8192, 8x1000,ragged") == ["1x8192", "8x1000", "ragged"]
    with pytest.raises(SystemExit):
        peers.main(["--only", "1x17"])
    assert "'1x17' is not a part of a run; there are costs, ragged, 1x16, 1x128, 8x16" in capsys.readouterr().err
    assert [each[:2] for each in peers.chosen_problems(["8x1000", "1x8192"])] == [(8, 1000), (1, 8192)]
