"""``pav2gen tune``: what becomes a row and what does not, how a run goes on, and the file that comes of it."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.bench import commands
from pav2gen.bench.measuring import contestants
from pav2gen.bench.measuring.clock import Times
from pav2gen.bench.measuring.problem import Problem
from pav2gen.bench.tuning import tune as tuner
from pav2gen.bench.tuning.progress import Journal
from pav2gen.bench.tuning.tune import TuneOptions, decide, lengths_of, tune
from pav2gen.cli import main
from pav2gen.errors import UserError
from pav2gen.reading import tuning_file as tuning
from pav2gen.reading.selection import load
from pav2gen.runtime.choice.key import Key

KEY = Key(64, 2, 16, "float16", "auto", False, False)
PROBLEM = Problem(KEY, 2, 8, 512)


@pytest.mark.parametrize(
    "times, chosen, because",
    [
        ({"64": [2.0, 2.1, 2.0], "128": [1.0, 1.0, 1.05]}, 128, ""),
        ({"64": [1.0, 1.01, 1.0], "128": [1.0, 1.0, 1.01]}, 64, ""),  # no user would see the difference
        ({"64": [2.0, 2.0, 2.0], "128": [1.0, 1.0, 1.2]}, 0, "noisy: the times of 128 differ by 20%"),
        (
            {"64": [1.0, 1.0, 1.0], "128": [0.96, 0.99, 1.04]},
            0,
            "noisy: 128 has the fastest median, but is 4% slower than the fastest in run 3",
        ),
        ({"64": [2.0, 2.0, 2.0], "128": [1.0, 0.0, 1.0]}, 0, "a time of 0 ms"),
        ({"64": [2.0, 2.0, 2.0], "128": [1.0, 1e-9, 1e-9]}, 0, "a time of 0 ms"),
        ({"64": [0.0, 0.0, 0.0], "128": [1.0, 1.0, 1.0]}, 0, "a time of 0 ms"),
        ({"64": [2.0], "128": [1.0]}, 0, "one run does not show how noisy the times are"),
        ({"128": [1.0, 1.0, 1.0]}, 0, "fewer than two partition sizes"),
        ({}, 0, "fewer than two partition sizes"),
    ],
)
def test_a_choice_is_made_only_where_the_figures_bear_it_out(times, chosen, because):
    found = decide(PROBLEM, times, {})
    assert found.partition_size == chosen and found.because.startswith(because) and bool(found.because) == bool(because)


@given(st.lists(st.lists(st.floats(0, 10), min_size=3, max_size=3), min_size=1, max_size=4))
def test_what_is_chosen_is_never_slow_never_zero_and_never_noisy(runs):
    times = {str(64 << number): each for number, each in enumerate(runs)}
    found = decide(PROBLEM, times, {})
    if found.partition_size:
        own = times[str(found.partition_size)]
        assert min(min(each) for each in runs) > 0
        assert all(mine <= 1.02 * min(each) + 1e-9 for mine, each in zip(own, zip(*runs), strict=True))
        assert max(own) - min(own) <= tuning.MOST_SPREAD * sorted(own)[1] + 1e-6
        assert found.ms[found.partition_size] == min(found.ms.values())


def test_lengths_are_the_powers_of_two_at_which_v2_is_preferred(selection):
    assert lengths_of(selection.spec) == (256, 512, 1024, 2048)
    qwen = load([Path(__file__).parents[2] / "specs" / "qwen36.yaml"])[0].spec
    assert lengths_of(qwen) == (16384, 32768, 65536, 131072, 262144)


@pytest.fixture
def clock(monkeypatch):
    """Times that a test decides: ``clock[partition size]`` in milliseconds. ``clock["log"]`` lists what was timed."""
    times = {64: 2.0, 128: 1.0, "log": []}

    def interleave(runs, inputs, device, rounds, warmups, step):
        call = next(inputs)
        times["log"].append((call.query.shape[0], call.max_seq_len, call.key_cache.shape[1], tuple(runs)))
        for run in runs.values():
            run(call)
        return {size: Times((times[int(size)],) * rounds) for size in runs}

    monkeypatch.setattr(tuner, "interleave", interleave)
    return times


def options(**changes):
    return TuneOptions(**{"device": torch.device("cpu"), "num_seqs": (1, 2), "seq_lens": (256,), **changes})


def test_every_rank_batch_and_length_is_measured_in_several_runs(selection, clock):
    outcome = tune(selection, options())
    assert (outcome.rows, outcome.noisy, outcome.wrong) == (4, (), ())
    expected = [(seqs, 256, kv_heads, ("64", "128")) for kv_heads in (2, 1) for seqs in (1, 2) for _ in range(3)]
    assert clock["log"] == expected, "float32 has one partition size, and nothing to choose"


def test_the_file_holds_figures_device_date_and_command_and_a_build_takes_it(spec_path, selection, clock):
    outcome = tune(selection, options(command="pav2gen tune specs/tiny.yaml"))
    assert outcome.path == Path("specs/tuning/tiny.cpu.yaml")
    text = outcome.path.read_text()
    for line in ('spec: "tiny"', 'device: "cpu"', 'command: "pav2gen tune specs/tiny.yaml"', "runs: 3", "rounds: 7"):
        assert f"\n{line}\n" in text
    assert '\ndate: "20' in text and "threads" in text and "torch: " in text
    row = "{num_seqs: 1, max_seq_len: 256, partition_size: 128, ms: {64: 2.000000, 128: 1.000000}, spread: 0.0000}"
    assert text.count(f"      - {row}\n") == 2
    result = CliRunner().invoke(main, ["build", str(spec_path)])
    assert result.exit_code == 0, result.output
    assert Path("generated/dispatch.py").read_text().count("Tuned(") == 4


def test_noise_is_written_down_and_chooses_nothing(selection, clock, monkeypatch):
    drift = iter(range(100))
    real = tuner.interleave

    def drifting(*arguments):
        found = real(*arguments)
        factor = 1 + 0.2 * (next(drift) % 3)
        return {size: Times(tuple(factor * sample for sample in times.samples)) for size, times in found.items()}

    monkeypatch.setattr(tuner, "interleave", drifting)
    outcome = tune(selection, options(num_seqs=(1,)))
    assert outcome.rows == 0 and len(outcome.noisy) == 2 and "the times of 128 differ by 33%" in outcome.noisy[0]
    text = outcome.path.read_text()
    assert "    rows: []\n    noisy:\n" in text and 'because: "noisy: the times of 128 differ by 33%"' in text
    assert tuning.load(outcome.path, selection.spec).rows == ()


def test_a_wrong_kernel_is_discarded_and_the_command_fails(spec_path, clock, monkeypatch):
    real = contestants.operate

    def operate(package, call, row, backend):
        real(package, call, row, backend)
        if row.partition_size == 128:
            call.out[0].mul_(1.01)

    monkeypatch.setattr(contestants, "operate", operate)
    result = CliRunner().invoke(commands.tune, [str(spec_path), "--num-seqs", "1", "--seq-len", "256", "--rounds", "3"])
    assert result.exit_code == 1 and "error: torch head_size=64" in result.output
    assert "p128 wrong: its error is" in result.output and "0 rows, 2 measurements without effect" in result.output
    assert all(names == ("64",) for *_, names in clock["log"])
    text = Path("specs/tuning/tiny.cpu.yaml").read_text()
    assert "    discarded:\n      - {num_seqs: 1, max_seq_len: 256, partition_size: 128, because: " in text


def test_a_run_that_was_cut_short_goes_on(selection, clock, monkeypatch):
    real, left = tuner.interleave, iter([1] * 7)

    def interrupted(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(tuner, "interleave", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(selection, options())
    assert not Path("specs/tuning/tiny.cpu.yaml").exists() and Path("specs/tuning/tiny.cpu.partial").exists()
    monkeypatch.setattr(tuner, "interleave", real)
    clock["log"].clear()
    outcome = tune(selection, options())
    assert len(clock["log"]) == 6, "two of four measurements, of three runs each, were there"
    assert outcome.rows == 4 and "resumed: 2 of 4 measurements were made before" in outcome.notes
    assert not Path("specs/tuning/tiny.cpu.partial").exists()


def test_figures_of_other_circumstances_are_not_taken_up(selection, clock):
    partial = Path("specs/tuning/tiny.cpu.partial")
    partial.parent.mkdir()
    partial.write_text('{"device": "another"}\n["torch ...", {"ms": {}, "wrong": {}}]\n')
    outcome = tune(selection, options(num_seqs=(1,)))
    assert len(clock["log"]) == 6 and not any("resumed" in note for note in outcome.notes)


@given(
    st.dictionaries(st.text(min_size=1), st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False))),
    st.integers(0, 40),
)
def test_a_journal_keeps_what_was_whole(tmp_path_factory, entries, cut):
    path = tmp_path_factory.mktemp("journal") / "a.partial"
    journal = Journal(path, {"device": "a"})
    for name, entry in entries.items():
        journal.add(name, entry)
    head, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert Journal(path, {"device": "a"}).entries == entries
    shortened = "".join(lines)[: -cut or None]
    path.write_text(head + shortened, encoding="utf-8")
    kept = Journal(path, {"device": "a"})
    assert kept.entries.items() <= entries.items() and kept.found == len(kept.entries)
    assert len(kept.entries) >= shortened.count("\n")
    assert Journal(path, {"device": "b"}).entries == {} == Journal(path, {"device": "b"}).entries


def test_rows_that_are_not_measured_again_are_not_lost_unasked(selection, clock):
    tune(selection, options())
    with pytest.raises(UserError) as raised:
        tune(selection, options(num_seqs=(1,)))
    assert "holds 2 of 4 rows that this command does not measure again" in str(raised.value)
    assert str(raised.value).startswith("specs/tuning/tiny.cpu.yaml: ")
    assert tune(selection, options(num_seqs=(1,), replace=True)).rows == 2


def test_a_broken_file_is_replaced(spec_path, clock):
    path = Path("specs/tuning/tiny.cpu.yaml")
    path.parent.mkdir()
    path.write_text("schema: 7\n")
    result = CliRunner().invoke(commands.tune, [str(spec_path), "--num-seqs", "1", "--seq-len", "256"])
    assert result.exit_code == 0, result.output
    assert result.output.endswith("2 rows, 0 measurements without effect\nnext: pav2gen build specs/tiny.yaml\n")


def test_a_fixed_partition_leaves_nothing_to_choose(spec_path, clock):
    spec_path.write_text(spec_path.read_text().replace("{min_seq_len: 128}", "{min_seq_len: 128, partition: 64}"))
    with pytest.raises(UserError, match="has no partition size to choose"):
        tune(load([spec_path])[0], options())


def test_a_large_cache_is_left_out_and_told(selection, clock):
    outcome = tune(selection, options(seq_lens=(256, 2048), max_gib=0.0005))
    assert any(
        note.startswith("left out, because the KV cache is larger than --max-gib 0.0005: S=2 L=2048 4/2")
        for note in outcome.notes
    )
    assert all(each["max_seq_len"] == 256 or each["num_seqs"] * each["kv_heads"] < 4 for each in rows_of(selection))


def rows_of(selection):
    found = tuning.load(Path("specs/tuning/tiny.cpu.yaml"), selection.spec).rows
    return [json.loads(json.dumps(vars(row))) for row in found]


def test_it_measures_for_real(spec_path):
    arguments = [str(spec_path), "--num-seqs", "1", "--seq-len", "256", "--rounds", "3", "--runs", "2"]
    result = CliRunner().invoke(commands.tune, arguments)
    assert result.exit_code == 0, result.output
    text = Path("specs/tuning/tiny.cpu.yaml").read_text()
    assert text.count("num_seqs: 1, max_seq_len: 256") == 2, "a row, or noise, for each rank"
    assert CliRunner().invoke(main, ["build", str(spec_path)]).exit_code == 0


def test_a_limit_that_leaves_nothing_is_named(spec_path):
    result = CliRunner().invoke(main, ["tune", str(spec_path), "--max-gib", "0.000001"])
    assert result.exit_code == 2 and "every problem has a KV cache larger than --max-gib 1e-06" in result.stderr
