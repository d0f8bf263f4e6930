"""``pav2gen bench``: who is measured, what is checked first, and what stands in the document. No time is asserted."""

import importlib.util
import json
import math
import re
import types
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from pav2gen.bench import commands
from pav2gen.bench.extending import extend_bench
from pav2gen.bench.measuring import bench as benching
from pav2gen.bench.measuring import contestants, live, machine, table
from pav2gen.bench.measuring import measurement_file as documents
from pav2gen.bench.measuring.problem import Problem, make
from pav2gen.errors import UserError
from pav2gen.reading.selection import load
from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.choice.key import Key

from .conftest import SPEC, options

FLOAT16 = Key(64, 2, 16, "float16", "auto", False, False)._asdict()


def entries(point):
    return {entry["name"]: entry for entry in point["contestants"]}


def test_a_point_for_each_key_and_length(document):
    assert [(p["key"]["dtype"], p["num_seqs"], p["seq_len"]) for p in document["points"]] == [
        ("float16", 2, 100), ("float16", 2, 300), ("float32", 2, 100), ("float32", 2, 300),
    ]  # fmt: skip
    first = document["points"][0]
    assert first["key"] == FLOAT16 and (first["num_heads"], first["kv_heads"]) == (4, 2)
    assert first["kv_bytes"] == 2 * 2 * 100 * 2 * 64 * 2
    assert document["spec"]["name"] == "tiny" and document["command"] == "pav2gen bench specs/tiny.yaml"


def test_every_kernel_is_measured_beside_its_peers(document):
    for point in document["points"]:
        found = entries(point)
        sizes = (64, 128) if point["key"]["dtype"] == "float16" else (64,)
        assert list(found) == [*(f"torch p{size}" for size in sizes), "sdpa", "seed", "vllm"]
        for name in (*(f"torch p{size}" for size in sizes), "sdpa", "seed"):
            entry = found[name]
            assert entry["because"] == "" and 0 < entry["error"] <= 1 and entry["checked_seqs"] == 2
            assert len(entry["samples_ms"]) == 3 and min(entry["samples_ms"]) > 0
            assert sorted(entry["samples_ms"])[1] == entry["median_ms"]
            assert entry["gbps"] == pytest.approx(point["io_bytes"] / entry["median_ms"] / 1e6, rel=1e-2, abs=1e-3)
            assert entry["share_of_copy"] == pytest.approx(entry["gbps"] / point["copy_gbps"], rel=0.05, abs=1e-3)
        assert found["vllm"] == {"name": "vllm", "because": "vLLM is not installed"}


def test_launches_and_workspace_are_the_plans(document, selection):
    plans = {(v.dtype, v.partition_size): p for v, p in selection.kernels}
    for point in document["points"]:
        for entry in point["contestants"]:
            if "symbol" in entry:
                held = plans[point["key"]["dtype"], entry["partition_size"]]
                calls = held.torch_calls(2, point["seq_len"], held.torch.cpu, known=True)
                # The caller's scratch has room for a partition of 512. With more partitions, tmp_out is not written.
                scratch = 0 if point["seq_len"] <= entry["partition_size"] else -1
                assert entry["launches"] == calls + scratch
                assert 1 << 20 <= entry["workspace_bytes"] <= selection.spec.limits.workspace_mib << 20


def test_the_kernel_that_the_table_chooses_is_named(document):
    for point in document["points"]:
        chosen = [entry["symbol"] for entry in point["contestants"] if table.is_chosen(entry, point)]
        assert chosen == [point["chosen"]["torch"]]


def test_cuda_kernels_are_not_timed_on_a_cpu_and_it_says_so(document):
    assert benching.HOST_NOTE in document["notes"] and "not timed on a CPU" in benching.HOST_NOTE
    assert not any(entry.get("backend") == "cuda" for point in document["points"] for entry in point["contestants"])


@pytest.fixture
def broken(monkeypatch):
    """One kernel is off by a little more than is allowed, another raises."""
    real = contestants.operate

    def operate(package, call, row, backend):
        real(package, call, row, backend)
        if row.key.dtype == "float32":
            raise RuntimeError("out of luck\nand more")
        if row.partition_size == 64:
            call.out.mul_(1.003)

    monkeypatch.setattr(contestants, "operate", operate)


def test_a_wrong_kernel_is_not_timed(selection, broken):
    found = benching.bench(selection, options(against=("sdpa",), seq_lens=(100,)))
    half, single = map(entries, found["points"])
    assert re.match(r"wrong: its error is [0-9.]+ times the allowed error", half["torch p64"]["because"])
    assert single["torch p64"]["because"] == "failed: out of luck"
    assert all("median_ms" not in each["torch p64"] for each in (half, single))
    assert "median_ms" in half["torch p128"] and "median_ms" in single["sdpa"]
    assert len(list(benching.wrong(found))) == 2


def test_a_kernel_that_writes_nothing_is_wrong(selection, monkeypatch):
    real = contestants.operate

    def operate(package, call, row, backend):
        if row.partition_size == 64:
            real(package, call, row, backend)

    monkeypatch.setattr(contestants, "operate", operate)
    point = benching.bench(selection, options(against=(), seq_lens=(100,)))["points"][0]
    assert [entry["because"] for entry in point["contestants"]] == [
        "",
        "wrong: its error is inf times the allowed error",
    ]


@pytest.mark.parametrize("error, right", [(0.0, True), (1.0, True), (1.0001, False), (math.inf, False)])
def test_one_is_what_is_allowed(error, right):
    checker = contestants.Checker.__new__(contestants.Checker)
    checker.error = lambda contestant, call: error
    assert (checker.verdict(None, None)[1] == "") == right


def test_the_command_fails_with_a_wrong_kernel(spec_path, broken):
    arguments = ["bench", str(spec_path), "--seq-len", "100", "--num-seqs", "1", "--rounds", "3", "--against", "none"]
    result = CliRunner().invoke(commands.bench, arguments[1:])
    assert result.exit_code == 1
    assert "error: pav2_tiny_hd64_g2_b16_f16_p64 (torch), S=1 L=100: wrong" in result.output
    assert "torch p64 at S=1 L=100: wrong" in result.output


def test_nan_is_wrong():
    assert not math.inf <= 1  # what NaN counts as, in the oracle's measure and in the baselines'
    point = torch.full((1, 2, 4), float("nan"))
    assert contestants.excess(point, torch.ones(1, 2, 4, dtype=torch.float64)) == math.inf


def test_the_document_is_read_as_it_was_written(document, tmp_path):
    path = tmp_path / "deep" / "bench.json"
    documents.check_writable(path)
    documents.write(path, document)
    assert documents.read(path) == document == json.loads(path.read_text())
    assert path.read_text().count("\n") == len(document) + 1 + len(document["points"]) + 2


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda d: d.update(kind="other"), "is not a document of pav2gen bench"),
        (lambda d: d.update(schema=9), "has schema '9', but this pav2gen reads schema 1"),
        (lambda d: d.pop("device"), "is damaged: device is missing"),
        (lambda d: d["points"][1].pop("copy_gbps"), "is damaged: points[1]: copy_gbps is missing"),
        (lambda d: d["points"][0]["contestants"].append({}), "].contestants[5]: because is missing"),
        (lambda d: d.update(device={}), "is damaged: device: about is missing"),
        (lambda d: d["points"][0]["key"].pop("alibi"), "points[0].key: alibi is missing"),
        (lambda d: d["points"][0]["key"].update(head_size="64"), "points[0].key.head_size: '64' is not a whole number"),
        (lambda d: d["points"][0].update(seq_len=0), "points[0].seq_len: '0' is not a number above 0"),
        (lambda d: d["points"][0].update(seq_len=True), "points[0].seq_len: 'True' is not a number"),
        (lambda d: d["points"][0].update(copy_gbps=float("inf")), "Infinity is not a number"),
        (lambda d: d["points"][0]["contestants"][0].update(median_ms=float("nan")), "NaN is not a number"),
        (lambda d: d["points"][0]["contestants"][0].pop("median_ms"), "points[0].contestants[0]: median_ms is missing"),
        (
            lambda d: d["points"][0]["contestants"][0].update(spread=-1),
            "points[0].contestants[0].spread: '-1' is below 0",
        ),
        (lambda d: d["points"].append(3), "points[4]: '3' is not an object"),
    ],
)
def test_a_damaged_document_is_refused(document, tmp_path, change, words):
    copy = json.loads(json.dumps(document))
    change(copy)
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(copy))
    with pytest.raises(UserError) as raised:
        documents.read(path)
    assert words in str(raised.value) and str(raised.value).startswith(str(path))


def test_no_document_and_no_json(tmp_path):
    for name, text in (("missing.json", None), ("text.json", "{")):
        if text:
            (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=r"no such file|not readable JSON"):
            documents.read(tmp_path / name)


def test_the_table_for_people(spec_path):
    words = f"{spec_path} --filter dtype=float16 --seq-len 64 --num-seqs 1 --rounds 3"
    result = CliRunner().invoke(commands.bench, [*words.split(), "--json", "out.json"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    header = next(line for line in lines if "contestant" in line)
    assert " ".join(header.split()) == "S L contestant ms +- x sdpa x seed GB/s copy calls MiB"
    end = next(number for number, line in enumerate(lines) if line.startswith("a copy reached"))
    assert max(map(len, lines[lines.index(header) : end])) <= 80, "it fits a terminal"
    assert sum("torch p" in line for line in lines) == 2 and sum(" * " in line for line in lines) == 1
    assert any(line.startswith("vllm: vLLM is not installed") for line in lines)
    assert documents.read(Path("out.json"))["command"] == f"pav2gen bench {words}"


@pytest.fixture
def points(monkeypatch, document):
    """Problems that are measured at once: each gives the point of the small document with its length."""

    def measure(setup, problem, given):
        point = next(p for p in document["points"] if p["key"] == problem.key._asdict())
        return {**point, "num_seqs": problem.num_seqs, "seq_len": problem.seq_len}

    monkeypatch.setattr(benching, "measure", measure)
    return measure


def test_each_problem_is_kept_as_it_is_measured(selection, points):
    kept = []
    found = benching.bench(selection, options(kept=lambda so_far, left: kept.append((len(so_far["points"]), left > 0))))
    assert kept == [(1, True), (2, True), (3, True), (4, False)] and len(found["points"]) == 4
    assert not benching.interrupted(found)


def test_the_time_to_come_grows_with_the_bytes(selection):
    key = Key(**FLOAT16)
    sizes = [Problem(key, 2, 1, length) for length in (1 << 20, 2 << 20, 1 << 20)]
    assert all(each.kv_bytes > 10 * benching.FIXED_BYTES / 2 for each in sizes[1:2])
    assert benching.estimate(sizes, 1, 10.0) == pytest.approx(30.0, rel=0.15)
    assert benching.estimate(sizes, 3, 10.0) == 0


@pytest.mark.parametrize("operator", ["decode", "extend"])
def test_what_was_measured_before_an_interrupt_is_kept(spec_path, points, monkeypatch, operator):
    real = points if operator == "decode" else extend_bench.measure

    def measure(setup, *given):
        problem = getattr(given[-2], "decode", given[-2])  # of an extend problem, its decode problem
        if (problem.key.dtype, problem.seq_len) == ("float32", 300):
            raise KeyboardInterrupt
        return real(setup, *given)

    monkeypatch.setattr(benching if operator == "decode" else extend_bench, "measure", measure)
    words = [str(spec_path), "--seq-len", "100,300", "--num-seqs", "2", "--json", "out.json"]
    if operator == "extend":
        spec_path.write_text(SPEC.replace("backends:", "operators: [decode, extend]\nbackends:"))
        words += ["--operator", "extend", "--query-lens", "4", "--rounds", "3"]
    first = "Q=4 S=2 L=300 4/2 heads" if operator == "extend" else "S=2 L=300 4/2 heads"
    result = CliRunner().invoke(commands.bench, words)
    assert result.exit_code == 130
    found = documents.read(Path("out.json")) if operator == "decode" else json.loads(Path("out.json").read_text())
    assert [(p["key"]["dtype"], p["seq_len"]) for p in found["points"]] == [
        ("float16", 100), ("float16", 300), ("float32", 100),
    ]  # fmt: skip
    assert found["notes"][-1].startswith(f"interrupted: 1 of 4 problems were not measured; the first is {first}")
    assert result.output.count("contestant ") == 2, "both tables are printed"
    assert "note: interrupted" in result.output


def test_a_table_is_printed_when_the_next_begins(spec_path, points, monkeypatch, capsys):
    seen = []

    def measure(setup, problem, given):
        seen.append(capsys.readouterr())
        return points(setup, problem, given)

    monkeypatch.setattr(benching, "measure", measure)
    with pytest.raises(SystemExit, match="0"):
        commands.bench.main([str(spec_path), "--seq-len", "100,300", "--num-seqs", "2"])
    printed = [each.out.count("contestant ") for each in [*seen, capsys.readouterr()]]
    assert printed == [0, 0, 0, 1, 1]  # when each of four problems begins, and in the end
    assert "left, estimated from the problems measured so far" in seen[1].err


def test_quick_measures_little_unless_it_is_told_otherwise(spec_path, monkeypatch):
    given = []

    def bench(chosen, asked):
        given.append(asked)
        raise UserError("enough")

    monkeypatch.setattr(benching, "bench", bench)
    CliRunner().invoke(commands.bench, [str(spec_path), "--quick"])
    CliRunner().invoke(commands.bench, [str(spec_path), "--quick", "--rounds", "5", "--against", "seed"])
    asked = [(each.seq_lens, each.num_seqs, each.rounds, each.against, each.seconds) for each in given]
    assert asked == [((4096,), (1,), 3, ("sdpa",), 45.0), ((4096,), (1,), 5, ("seed",), 45.0)]
    assert given[0].command == f"pav2gen bench {spec_path} --quick"


def test_no_problem_begins_after_the_time_is_up(selection, points, monkeypatch):
    clock = iter([0.0, 1.0, 9.0, 50.0])
    monkeypatch.setattr(benching.time, "monotonic", lambda: next(clock, 50.0))
    found = benching.bench(selection, options(seconds=45.0))
    assert 1 <= len(found["points"]) < 4
    assert found["notes"][-1].startswith("out of time after 45 s: ")


@pytest.mark.parametrize("seconds, words", [(5, "5 s"), (99, "99 s"), (600, "10 min"), (9000, "2.5 h")])
def test_a_duration_in_words(seconds, words):
    assert live.duration(seconds) == words


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(spec_path, monkeypatch):
    monkeypatch.setattr(benching, "bench", lambda *rest: pytest.fail("it was measured"))
    result = CliRunner().invoke(commands.bench, [str(spec_path), "--json", "specs"])
    assert isinstance(result.exception, IsADirectoryError)


def test_ratios_are_of_medians_of_one_run():
    point = {
        "contestants": [{"name": "torch p64", "median_ms": 2.0}, {"name": "seed", "median_ms": 150.0}, {"name": "vllm"}]
    }
    ours = point["contestants"][0]
    assert table.ratio(ours, point, "seed") == 75.0
    assert table.ratio(ours, point, "vllm") is None and table.ratio(ours, point, "sdpa") is None


def test_a_large_cache_is_left_out_and_told(selection):
    found = benching.bench(selection, options(seq_lens=(100, 2000), max_gib=0.0005, against=()))
    assert {point["seq_len"] for point in found["points"]} == {100}
    assert any(
        "left out, because the KV cache is larger than --max-gib 0.0005: S=2 L=2000" in note for note in found["notes"]
    )
    with pytest.raises(UserError, match="no problem is left to measure"):
        benching.bench(selection, options(max_gib=1e-9))


def test_the_rank_is_that_of_the_tensor_parallel_size(selection):
    found = benching.bench(selection, options(tensor_parallel=2, seq_lens=(64,), against=()))
    assert {(point["num_heads"], point["kv_heads"]) for point in found["points"]} == {(2, 1)}
    with pytest.raises(UserError, match=r"--tensor-parallel 3 does not fit the chosen kernels; write "):
        benching.bench(selection, options(tensor_parallel=3))


@pytest.mark.parametrize(
    "name, words",
    [("tpu", "write cpu, cuda"), ("meta", "is not supported"), ("cuda:99", "torch sees [0-9]+ CUDA devices")],
)
def test_a_device_that_is_none(name, words):
    with pytest.raises(UserError, match=words):
        machine.device_of(name)


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_without_torch_the_extra_is_named(command, spec_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest))
    with pytest.raises(UserError) as raised:
        getattr(commands, command).main([str(spec_path)], standalone_mode=False)
    assert str(raised.value) == f"pav2gen {command} needs torch, which is not installed; pip install 'pav2gen[torch]'"


@pytest.mark.parametrize("word", ["0", "-1", "8k", "1,,2", "", "4294967296", "٣"])
def test_a_list_of_lengths_that_is_none(word, spec_path):
    result = CliRunner().invoke(commands.bench, [str(spec_path), "--seq-len", word])
    assert result.exit_code == 2 and "is not a list of positive whole numbers" in result.output


@pytest.mark.parametrize("command", [commands.bench, commands.tune, commands.report])
def test_help_has_an_example_and_needs_no_torch(command, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0 and f"pav2gen {command.name} specs/qwen36.yaml" in result.output


def test_a_spec_without_kernels_for_the_cpu(spec_path):
    spec_path.write_text(spec_path.read_text().replace("[torch, cuda]", "[cuda]"))
    with pytest.raises(UserError, match="no kernel that can be timed on this device"):
        benching.bench(load([spec_path])[0], options())


def test_a_gpu_is_described_and_its_memory_counted(monkeypatch, cache_bytes):
    card = types.SimpleNamespace(
        name="Iluvatar BI-V100", multi_processor_count=16, total_memory=1 << 35, L2_cache_size=0
    )
    held = iter([100, 900])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(machine, "device_name", lambda device: card.name)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(held))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(held))
    device = torch.device("cuda", 0)
    assert machine.describe(device) == {
        "name": "Iluvatar BI-V100",
        "kind": "cuda",
        "about": "Iluvatar BI-V100, 16 multiprocessors",
        "memory_bytes": 1 << 35,
    }
    assert cache_bytes(device) == machine.CACHE_BYTES["cuda"], "where torch does not tell"
    assert machine.peak_bytes(lambda: None, device) == 800


def test_the_copy_moves_what_it_says():
    run, moved = machine.copy(torch.device("cpu"), 1 << 20)
    assert run(None).numel() * 4 * 2 == moved == 2 * machine.LEAST_COPY


def test_launches_of_cuda_kernels(selection):
    key = Key(**FLOAT16)
    row = Row("x", "tiny", key, 64, "", "x.cu", 0, 0, 16, 1)
    call = make(Problem(key, 2, 3, 64), torch.device("cpu"), 1).small
    assert contestants.cuda_launches(row, call) == 1, "one partition needs no reduction"
    assert contestants.cuda_launches(row, call._replace(max_seq_len=65)) == 2
    assert contestants.cuda_launches(row, call._replace(max_seq_len=64 * 500)) == 2 * 3 // 1
    windowed = call._replace(max_seq_len=64 * 500, sliding_window=64)
    assert contestants.cuda_launches(row, windowed) == 2, "two partitions of each sequence: one launch holds all three"


def test_the_table_says_which_baseline_was_sampled_once(document):
    entry = {**entries(document["points"][0])["seed"], "samples_ms": [700.0]}
    points = [{**document["points"][0], "seq_len": length, "contestants": [entry]} for length in (100, 300)]
    assert list(table.sampled_once(points)) == ["seed: sampled only once, because it is slow: S=2 L=100, S=2 L=300"]
    assert list(table.sampled_once(document["points"])) == []
    (shown,) = table.tables({"points": points})
    assert list(shown.columns[4].cells) == ["once", "once"] and "sampled only once" in str(shown.caption)
