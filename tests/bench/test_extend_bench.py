"""``pav2gen bench --operator extend``: who is measured, what is checked first, and the ratios. No time is asserted."""

import json

import pytest
import torch
from click.testing import CliRunner

from pav2gen.bench import commands
from pav2gen.bench.extending import extend_bench
from pav2gen.bench.extending.extend_bench import Pair
from pav2gen.bench.measuring import bench, clock, extend
from pav2gen.errors import UserError
from pav2gen.reading.selection import load
from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.extend.cases import ExtendCase, make

from .conftest import CPU, SPEC

EXTENDING = SPEC.replace("backends:", "operators: [decode, extend]\nbackends:")


@pytest.fixture
def extending(spec_path):
    spec_path.write_text(EXTENDING)
    return spec_path


def options(**changes):
    given = {"seq_lens": (5, 100), "num_seqs": (2,), "query_lens": (5,), "rounds": 3, "warmups": 1}
    return extend_bench.ExtendOptions(CPU, **{**given, **changes})


def test_ratios_are_of_the_medians_and_costs_are_counted(extending):
    found = extend_bench.measure_all(load([extending], ["dtype=float32"])[0], options())
    assert [(p["num_seqs"], p["seq_len"], p["query_len"]) for p in found["points"]] == [(2, 5, 5), (2, 100, 5)]
    for point in found["points"]:
        entries = {entry["name"]: entry for entry in point["contestants"]}
        causal = ["sdpa causal"] * (point["seq_len"] == 5)
        assert list(entries) == ["torch", "sdpa", *causal, "torch decode"]
        for name, entry in entries.items():
            assert entry["because"] == "" and sorted(entry["samples_ms"])[1] == entry["median_ms"] > 0
            others = {"sdpa", *causal, "torch decode"} - {name}
            assert entry["ratios"] == {o: entry["median_ms"] / entries[o]["median_ms"] for o in others}
        assert 0 < entries["torch"]["error"] <= 1
        assert entries["torch"]["launches"] > 0 and entries["torch"]["workspace_bytes"] > 0


@pytest.mark.parametrize(
    "axes, features",
    [
        ("  kv_cache_dtype: fp8_e4m3\n", ""),
        ("  kv_cache_dtype: int8\n", ""),
        ("", "features: {sliding_window: 20}\n"),
    ],
    ids=["fp8", "int8", "window"],
)
def test_keys_with_a_small_cache_or_a_window_are_measured(extending, axes, features):
    """The scales of the cache, or the window, reach the kernels: their errors are within bounds."""
    text = EXTENDING.replace("axes:\n", f"axes:\n{axes}").replace("backends:", f"{features}backends:")
    extending.write_text(text)
    found = extend_bench.measure_all(load([extending], ["dtype=float32"])[0], options())
    assert [point["seq_len"] for point in found["points"]] == [5, 100]
    for point in found["points"]:
        kernel, decode, sdpa = point["contestants"]
        assert [each["name"] for each in (kernel, decode, sdpa)] == ["torch", "torch decode", "sdpa"]
        assert kernel["because"] == "" and 0 < kernel["error"] <= 1
        assert kernel["ratios"] == {"torch decode": kernel["median_ms"] / decode["median_ms"]}
        because = "this baseline computes plain attention: no cache of 8 bits, and no features"
        assert sdpa == {"name": "sdpa", "because": because}


def test_a_kernel_with_one_wrong_row_is_not_timed(extending, monkeypatch):
    real = extend.operate

    def operate(package, call, row, backend):
        real(package, call, row, backend)
        call.out[-1].mul_(1.01)

    monkeypatch.setattr(extend, "operate", operate)
    (point,) = extend_bench.measure_all(load([extending], ["dtype=float32"])[0], options(seq_lens=(9,)))["points"]
    kernel, sdpa = point["contestants"][:2]
    assert kernel["because"].startswith("wrong: its error is") and "median_ms" not in kernel
    assert "median_ms" in sdpa


def test_the_command_prints_a_table_and_writes_its_own_kind(extending):
    arguments = [str(extending), "--operator", "extend", "-f", "dtype=float32", "--seq-len", "40", "--num-seqs", "1"]
    arguments += ["--query-lens", "2", "--rounds", "3", "--json", "x.json"]
    result = CliRunner().invoke(commands.bench, arguments)
    assert result.exit_code == 0, result.output
    assert "/ torch decode" in result.output and "extend, 4/2 heads" in result.output
    with open("x.json", encoding="utf-8") as file:
        document = json.load(file)
    assert (document["kind"], document["schema"]) == ("pav2gen bench extend", 1)
    assert "--operator extend" in document["command"] and "--query-lens 2" in document["command"]


def test_errors_say_what_to_change(selection, extending):
    with pytest.raises(UserError, match=r"operators: \[decode, extend\]"):
        extend_bench.measure_all(selection, options())
    with pytest.raises(UserError, match="--query-lens"):
        extend_bench.measure_all(load([extending])[0], options(seq_lens=(4,)))
    for arguments in (["-f", "extend_*"], ["--query-lens", "4"]):
        with pytest.raises(UserError, match="--operator extend"):
            CliRunner().invoke(commands.bench, [str(extending), *arguments], catch_exceptions=False)


def test_the_message_of_a_failure_names_the_query_length():
    entry = {"name": "torch", "symbol": "pav2_a", "backend": "torch", "because": "failed: no room"}
    point = {"num_seqs": 2, "seq_len": 100, "query_len": 4, "contestants": [entry]}
    assert list(bench.wrong({"points": [point]})) == ["pav2_a (torch), Q=4 S=2 L=100: failed: no room"]


def test_a_cuda_kernel_is_counted_with_its_launches():
    call, row = extend_call([1100] * 6), CUDA_ROW
    contestant = extend_bench.Contestant("cuda", lambda pair: None, lambda pair: torch.zeros(3).add_(1), row, "cuda")
    assert extend_bench.launches(contestant, Pair(None, call)) == 2 + 2, "two ATen calls, partitions and their merge"
    assert extend_bench.launches(contestant._replace(backend="torch"), Pair(None, call)) == 2


@pytest.mark.parametrize(
    "lengths, workspace_mib, count",
    [
        ([100] * 6, 0, 1),  # one partition of 1,024 tokens needs no merge
        ([1100] * 6, 1, 2),
        ([1100] * 30, 1, 4),  # the workspace holds the partial results of 20 tiles
        ([1100] * 3, 0, 6),
    ],
)
def test_launches_of_cuda_extend_kernels(lengths, workspace_mib, count):
    assert extend_bench.cuda_launches(CUDA_ROW._replace(workspace_mib=workspace_mib), extend_call(lengths)) == count


KEY = Key(64, 3, 16, "float16", "auto", False, False)
CUDA_ROW = Row("s", "x", KEY, 1024, "", "x.cu", 0, 0, 16, 1, operator="extend", tile_tokens=16)


def extend_call(lengths):
    """An extend call with 6 query heads, in which each sequence has 16 new tokens."""
    return make(ExtendCase(KEY, 1 << 30, tuple(lengths), query_lens=(16,) * len(lengths), kv_heads=2))


def test_the_table_says_which_baseline_was_sampled_once(extending, monkeypatch):
    monkeypatch.setattr(clock, "SLOW_SECONDS", 0.0)
    arguments = [str(extending), "--operator", "extend", "-f", "dtype=float32", "--seq-len", "40,60", "--num-seqs", "1"]
    result = CliRunner().invoke(commands.bench, [*arguments, "--query-lens", "2", "--rounds", "3"])
    assert result.exit_code == 0, result.output
    assert "sdpa: sampled only once, because it is slow: S=1 L=40 Q=2, S=1 L=60 Q=2" in " ".join(result.output.split())
    assert ["sdpa" in line for line in result.output.splitlines() if " once " in line and "sampled" not in line] == [
        True, True,
    ]  # fmt: skip
