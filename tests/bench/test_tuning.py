"""Tuning files: read as strictly as a spec, and what a build makes of them."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from pav2gen.bench.measuring.package import load as load_package
from pav2gen.bench.measuring.problem import Problem, make
from pav2gen.cli import main
from pav2gen.errors import UserError
from pav2gen.reading import tuning_file as tuning
from pav2gen.reading.spec_file import load as load_spec

AXES = "head_size: 64, gqa_ratio: 2, block_size: 16, dtype: float16, kv_cache_dtype: auto, alibi: false"
GOOD = """\
# What pav2gen tune measured, for pav2gen build to read. Measure again rather than edit.
schema: 1
spec: "tiny"
device: "cpu"
about: "a processor, 2 threads"
date: "2026-11-29T21:43:32Z"
command: "pav2gen tune specs/tiny.yaml"
versions: {pav2gen: "0.1.0", torch: "2.13.0"}
rounds: 7
runs: 3
kernels:
  - key: {AXES, blocksparse: false}
    backend: torch
    kv_heads: 2
    rows:
      - {num_seqs: 1, max_seq_len: 512, partition_size: 128, ms: {64: 0.204000, 128: 0.101000}, spread: 0.0210}
      - {num_seqs: 8, max_seq_len: 512, partition_size: 64, ms: {64: 0.804000, 128: 0.901000}, spread: 0.0300}
    noisy:
      - {num_seqs: 4, max_seq_len: 512, ms: {64: 0.4, 128: 0.4}, because: "noisy: the times of 64 differ by 40%"}
""".replace("AXES", AXES)


def tuned_line(symbol: str, num_seqs: int) -> str:
    """The line of the table for a choice that was measured on the CPU, at 512 tokens and with two KV heads."""
    fields = f'symbol="{symbol}", backend="torch", device="cpu", kv_heads=2, num_seqs={num_seqs}, max_seq_len=512'
    return f"    Tuned({fields}),"


@pytest.fixture
def tuning_path(spec_path) -> Path:
    """Where the tuning file of the small spec and the CPU stands; there is none yet."""
    path = tuning.path_of(spec_path, "tiny", "cpu")
    path.parent.mkdir()
    return path


def read(path, text):
    path.write_text(text)
    return tuning.load(path, load_spec("specs/tiny.yaml"))


def test_a_file_is_read_whole(tuning_path):
    found = read(tuning_path, GOOD)
    assert (found.device, found.path) == ("cpu", "specs/tuning/tiny.cpu.yaml")
    assert found.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    assert [(r.num_seqs, r.max_seq_len, r.partition_size, r.kv_heads, r.backend) for r in found.rows] == [
        (1, 512, 128, 2, "torch"),
        (8, 512, 64, 2, "torch"),
    ]
    assert found.of(found.rows[0].key, 128) == [
        {"backend": "torch", "device": "cpu", "kv_heads": 2, "num_seqs": 1, "max_seq_len": 512}
    ]
    assert found.of(found.rows[0].key._replace(dtype="float32"), 128) == []


#: What is replaced in the good file, by what, and the line and the words of the refusal.
BROKEN = [
    ("schema: 1", "schema: 2", 2, "schema 2 is not known"),
    ('spec: "tiny"', 'spec: "large"', 3, "the figures are of the spec 'large', not of tiny"),
    ('device: "cpu"', 'device: "Iluvatar BI-V100"', 4, "belong in tiny.iluvatar_bi_v100.yaml"),
    ("runs: 3", "runs: 1", 10, "rows of 1 run do not show how noisy the times are"),
    ('date: "2026-11-29T21:43:32Z"\n', "", 2, "lacks the key 'date'"),
    ("rounds: 7", "round: 7", 9, "unknown key 'round'"),
    ("head_size: 64", "head_size: 128", 12, "tiny has no kernel for head_size=128"),
    ("dtype: float16", "dtyp: float16", 12, "did you mean dtype"),
    ("backend: torch", "backend: cud", 13, "did you mean cuda"),
    ("kv_heads: 2", "kv_heads: 0", 14, "must be from 1"),
    ("num_seqs: 1,", "num_seqs: 1.5,", 16, "must be a whole number"),
    ("128: 0.101000", "128: 0.000000", 16, "a time of 0.000000 ms cannot be a measurement"),
    ("128: 0.101000", "128: -0.1", 16, "a time of -0.1 ms cannot be a measurement"),
    ("128: 0.101000", "256: 0.101000", 16, "unknown key '256'"),
    ("64: 0.204000, 128: 0.101000", "128: 0.101000", 16, "a single partition size has nothing to be compared with"),
    (
        "partition_size: 128, ms: {64: 0.204000",
        "partition_size: 64, ms: {64: 0.204000",
        16,
        "is not the fastest of its row",
    ),
    ("partition_size: 128,", "partition_size: 256,", 16, "partition_size 256 has no time in ms; it may be 64 or 128"),
    ("spread: 0.0210", "spread: 0.2100", 16, "a spread of 0.2100 is too noisy"),
    ("num_seqs: 8,", "num_seqs: 1,", 17, "measured already, at specs/tuning/tiny.cpu.yaml:16"),
    ("    rows:\n", "    rows: [\n", 16, "not YAML"),
]


@pytest.mark.parametrize("old, new, line, words", BROKEN, ids=[words for *_, words in BROKEN])
def test_a_broken_file_is_refused_at_its_line(tuning_path, old, new, line, words):
    assert GOOD.count(old) >= 1
    with pytest.raises(UserError) as raised:
        read(tuning_path, GOOD.replace(old, new, 1))
    text = str(raised.value)
    assert text.startswith(f"{tuning_path}:{line}: ") and words in text and "\n" not in text


def build(*arguments):
    return CliRunner().invoke(main, ["build", "specs/tiny.yaml", *arguments])


def test_a_build_refuses_it_as_it_does_a_bad_spec(tuning_path):
    tuning_path.write_text(GOOD.replace("128: 0.101000", "128: 0.0"))
    result = build()
    assert result.exit_code == 2 and not Path("generated").exists()
    assert result.output.startswith("error: specs/tuning/tiny.cpu.yaml:16: a time of 0.0 ms cannot be a measurement")


def test_a_build_reads_it_into_the_table_the_manifest_and_the_header(tuning_path):
    assert build().exit_code == 0
    table = Path("generated/dispatch.py")
    assert "Tuned(" not in table.read_text()
    kernels = {path: path.read_bytes() for path in Path("generated/tiny").rglob("*.py")}
    tuning_path.write_text(GOOD)
    assert build().exit_code == 0
    text = table.read_text()
    assert tuned_line("pav2_tiny_hd64_g2_b16_f16_p128", 1) in text
    digest = hashlib.sha256(GOOD.encode()).hexdigest()
    assert f"# tuning: specs/tuning/tiny.cpu.yaml sha256:{digest}\n" in text
    manifest = json.loads(Path("generated/tiny/MANIFEST.json").read_text())
    assert manifest["spec"]["tuning"] == {"specs/tuning/tiny.cpu.yaml": digest}
    assert [len(row["tuned"]) for row in manifest["rows"]] == [1, 1, 0]
    assert {path: path.read_bytes() for path in kernels} == kernels, "kernels do not depend on what was tuned"


def test_the_same_files_give_the_same_bytes_and_check_sees_a_change(tuning_path):
    tuning_path.write_text(GOOD)
    assert build().exit_code == 0
    assert "0 files written" in build().output
    check = CliRunner().invoke(main, ["check"])
    assert check.exit_code == 0, check.output
    tuning_path.write_text(GOOD.replace("0.101000", "0.102000"))
    check = CliRunner().invoke(main, ["check"])
    assert check.exit_code == 1 and "generated/dispatch.py" in check.output and "pav2gen build" in check.output


def test_the_built_package_follows_it(tuning_path):
    def chosen(num_seqs):
        table = load_package(Path("generated").resolve()).operator.table
        key = table.rows[0].key
        return table.choose(key, "torch", num_seqs, 512, 2, device="cpu").partition_size

    tuning_path.write_text(GOOD)
    assert build().exit_code == 0
    assert (chosen(1), chosen(8)) == (128, 64)
    swapped = re.sub(r"partition_size: 128, ms: {64: 0.204000", "partition_size: 64, ms: {64: 0.004000", GOOD)
    tuning_path.write_text(swapped)
    assert build().exit_code == 0
    assert (chosen(1), chosen(8)) == (64, 64)


def test_the_operator_runs_what_was_tuned_for_its_device(tuning_path, monkeypatch):
    tuning_path.write_text(GOOD)
    assert build().exit_code == 0
    package = load_package(Path("generated").resolve())
    key, ran = package.operator.table.rows[0].key, []
    real = package.operator.kernel
    monkeypatch.setattr(
        package.operator, "kernel", lambda row, *rest: ran.append(row.partition_size) or real(row, *rest)
    )
    for num_seqs in (1, 8):
        call = make(Problem(key, 2, num_seqs, 512), torch.device("cpu"), cache_bytes=1).first
        scratch = call.scratch
        package.paged_attention_v2(
            *(call.out, scratch.exp_sums, scratch.max_logits, scratch.tmp_out, call.query, call.key_cache),
            *(call.value_cache, 2, call.scale, call.block_tables, call.seq_lens, 16, 512, None, "auto", 1.0, 1.0),
        )
    assert ran == [128, 64]


def test_another_spec_keeps_its_rows_and_a_partial_build_only_its_own(tuning_path):
    tuning_path.write_text(GOOD)
    Path("specs/other.yaml").write_text(Path("specs/tiny.yaml").read_text().replace("name: tiny", "name: other"))
    assert build().exit_code == 0
    assert CliRunner().invoke(main, ["build", "specs/other.yaml"]).exit_code == 0
    lines = [line for line in Path("generated/dispatch.py").read_text().splitlines() if "Tuned(" in line]
    assert lines == [], "other serves the keys of both, and was not tuned"
    assert build("--filter", "partition_size=64", "--out", "part").exit_code == 0
    lines = [line for line in Path("part/dispatch.py").read_text().splitlines() if "Tuned(" in line]
    assert lines == [tuned_line("pav2_tiny_hd64_g2_b16_f16_p64", 8)]


@pytest.mark.parametrize("device, name", [("cpu", "cpu"), ("Iluvatar BI-V100", "iluvatar_bi_v100"), ("天垓", "device")])
def test_a_device_names_its_file(device, name):
    assert tuning.path_of(Path("specs/a.yaml"), "a", device) == Path(f"specs/tuning/a.{name}.yaml")
