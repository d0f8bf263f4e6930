"""What the PyTorch kernels must show on a CPU: ratios to their peers, from one run, and what a call costs beside time.

    python benches/against_peers.py
    python benches/against_peers.py --dtype bfloat16 --rounds 9 --json peers.json
    python benches/against_peers.py --dtype bfloat16 --rounds 3 --without seed      # a few minutes

24 query and 4 KV heads of 256, pages of 16. Times are medians of interleaved rounds, of the whole call with the kernel
that the dispatch table chooses. Exits with 1 where a requirement is missed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, talks on stderr

import torch

from pav2gen.bench.commands import progress
from pav2gen.bench.measuring import measurement_file as document
from pav2gen.bench.measuring import table
from pav2gen.bench.measuring.bench import BenchOptions, Setup, bench
from pav2gen.bench.measuring.clock import interleave
from pav2gen.bench.measuring.contestants import launches, operate, workspace_bytes
from pav2gen.bench.reporting.measurement_rows import Measurement, measurements
from pav2gen.reading.selection import Selection, load
from pav2gen.runtime.call import Call
from pav2gen.runtime.dispatch_row import Row
from pav2gen.runtime.testing.cases import Case, make

SPEC = """\
schema: 1
name: peers
about: the shape of Qwen3.6-27B in every dtype, for the bench against peers
target: bi-v100
model: {num_heads: 24, num_kv_heads: 4, max_seq_len: 262144, tensor_parallel: [1]}
axes:
  head_size: 256
  gqa_ratio: 6
  partition_size: 512  # vLLM's
  dtype: [float16, bfloat16, float32]
"""

#: Sequences, lengths, and whom to measure there. Short calls first.
PROBLEMS = (
    ((1, 8, 32, 64), (16, 128), ("sdpa", "vllm")),
    ((1, 8, 64), (512, 1000), ("sdpa", "vllm")),
    ((1,), (8192, 32768), ("sdpa", "flex", "vllm")),
    ((1,), (100_000,), ("sdpa", "seed", "vllm")),
    ((8,), (8192,), ("sdpa", "seed", "vllm")),
    ((8,), (32768,), ("sdpa",)),
)

#: Against the plain algorithm: at least so many times as fast. (dtype, sequences, length) -> ratio.
AGAINST_SEED = {
    ("float16", 1, 100_000): 60, ("bfloat16", 1, 100_000): 70, ("float32", 1, 100_000): 50,
    ("float16", 8, 8192): 30, ("bfloat16", 8, 8192): 30, ("float32", 8, 8192): 30,
}  # fmt: skip

#: Against torch's attention: at most 2.5 times as slow below so many tokens, from there on at most five per cent.
SHORT, AGAINST_SDPA_SHORT, AGAINST_SDPA = 512, 1 / 2.5, 1 / 1.05

#: Against vLLM's C++ kernel, where it is installed: (least length, dtype) -> ratio. The longest length that fits
#: counts.
AGAINST_VLLM = {
    (1000, "bfloat16"): 1 / 1.5, (1000, "float32"): 1 / 1.5,
    (8192, "bfloat16"): 1 / 1.1, (8192, "float32"): 1.0,
}  # fmt: skip

#: A ragged batch, and how many times the time of its longest sequence alone it may take.
RAGGED, RAGGED_LIMIT = (32_768, *[16] * 15), 1.3

#: (Sequences, length) of calls whose workspace and number of calls are looked at.
SHAPES = ((1, 100_000), (16, 8192), (256, 1000))


class Verdict(NamedTuple):
    """A requirement and what was found."""

    what: str
    found: str
    kept: bool


def ratios(point: Measurement, without: Collection[str] = ()) -> Iterator[Verdict]:
    """What one point must show, but for the peers in ``without``."""
    dtype, num_seqs = point.point["key"]["dtype"], point.point["num_seqs"]
    required = {
        "seed": AGAINST_SEED.get((dtype, num_seqs, point.seq_len)),
        "sdpa": AGAINST_SDPA_SHORT if point.seq_len < SHORT else AGAINST_SDPA,
        "vllm": against_vllm(point),
    }
    for peer, least in required.items():
        if least is not None and peer not in without:
            ratio = point.ratio("torch", peer)
            what = f"{dtype:8} S={num_seqs} L={point.seq_len:<6} x {peer} >= {least:.3g}"
            yield Verdict(what, f"{ratio:.3g}" if ratio else "not measured", ratio is not None and ratio >= least)


def against_vllm(point: Measurement) -> float | None:
    """The ratio to vLLM's kernel that a point must show; None where nothing is required, or vLLM is not installed."""
    measured = any(entry["name"] == "vllm" and "median_ms" in entry for entry in point.point["contestants"])
    fitting = [
        (length, ratio)
        for (length, dtype), ratio in AGAINST_VLLM.items()
        if measured and dtype == point.point["key"]["dtype"] and length <= point.seq_len
    ]
    return max(fitting)[1] if fitting else None


def ragged(chosen: Selection, rounds: int) -> Iterator[Verdict]:
    """A ragged batch beside its longest sequence alone, in interleaved rounds, for each kernel."""
    setup, device = Setup(chosen, torch.device("cpu")), torch.device("cpu")
    for variant, _ in chosen.kernels:
        (row,) = (row for row in setup.keys[variant.key] if row.symbol == variant.symbol)
        runs = {}
        for name, lengths in (("ragged", RAGGED), ("alone", RAGGED[:1])):
            call = make(Case(variant.key, variant.partition_size, lengths, kv_heads=4, shared_blocks=4096))
            runs[name] = functools.partial(_operate_on, call, setup.package, row)
        with torch.no_grad():
            times = interleave(runs, itertools.repeat(call), device, rounds, 2)
        ratio = times["ragged"].median / times["alone"].median
        what = f"{variant.dtype:8} {len(RAGGED)} sequences, one of {RAGGED[0]} <= {RAGGED_LIMIT} x that one alone"
        yield Verdict(what, f"{ratio:.3g}", ratio <= RAGGED_LIMIT)


def _operate_on(call: Call, package: ModuleType, row: Row, _: object) -> None:
    """Run a kernel on ``call``, whatever the round gives."""
    operate(package, call, row, "torch")


def costs(chosen: Selection) -> Iterator[Verdict]:
    """Workspace within the spec's limit, and calls as the plan counts them, for each kernel and shape."""
    setup, limit = Setup(chosen, torch.device("cpu")), chosen.spec.limits.workspace_mib
    for variant, plan in chosen.kernels:
        (contestant,) = (c for c in setup.kernels(variant.key) if c.row and c.row.symbol == variant.symbol)
        for num_seqs, length in SHAPES:
            case = Case(variant.key, variant.partition_size, (length,) * num_seqs, kv_heads=4, shared_blocks=512)
            call = make(case)._replace(lse=None)
            mib = workspace_bytes(contestant, call, setup.device) / (1 << 20)
            calls = launches(contestant, call)
            planned = plan.torch_calls(num_seqs, length, plan.torch.cpu, known=True)
            what = f"{variant.dtype:8} p{variant.partition_size:<4} S={num_seqs} L={length:<6}"
            yield Verdict(f"{what} workspace <= {limit} MiB", f"{mib:.1f}", mib <= limit)
            yield Verdict(f"{what} calls = {planned}", str(calls), calls == planned)


def measure(spec: Path, dtypes: Sequence[str], rounds: int, without: Collection[str]) -> dict[str, Any]:
    """One bench document of all problems, without some peers."""
    found: dict[str, Any] = {}
    with progress() as bar:
        for dtype in dtypes:
            chosen = load([spec], [f"dtype={dtype}"])[0]
            for num_seqs, seq_lens, peers in PROBLEMS:
                against = tuple(peer for peer in peers if peer not in without)
                options = BenchOptions(
                    torch.device("cpu"), seq_lens, num_seqs, against, rounds=rounds, progress=bar, max_gib=8.0,
                    command="python benches/against_peers.py",
                )  # fmt: skip
                part = bench(chosen, options)
                found = {**part, "points": [*found.get("points", ()), *part["points"]]}
    return found


def show(title: str, verdicts: Sequence[Verdict]) -> bool:
    """Print what was required and found; whether all was kept."""
    print(f"\n{title}")
    for verdict in verdicts:
        print(f"  {'ok    ' if verdict.kept else 'MISSED'}  {verdict.what}: {verdict.found}")
    return all(verdict.kept for verdict in verdicts)


def show_document(found: Mapping[str, Any]) -> None:
    """Print the figures as ``pav2gen bench`` does."""
    from rich.console import Console

    for line in table.head(found):
        print(line)
    for each in table.tables(found):
        Console(width=120).print(each)
    for line in table.notes(found):
        print(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say what was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    dtypes = ("float16", "bfloat16", "float32")
    parser.add_argument("--dtype", action="append", choices=dtypes, help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each contestant")
    parser.add_argument(
        "--without", action="append", default=[], choices=("flex", "sdpa", "seed", "vllm"),
        help="leave this peer out; repeatable. seed takes seconds for a call, flex is compiled for half a minute",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--costs-only", action="store_true", help="no times: only workspace and calls")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "peers.yaml")
        spec.write_text(SPEC, "utf-8")
        kept = show("What a call costs beside time", list(costs(load([spec])[0])))
        if not options.costs_only:
            found = measure(spec, options.dtype or dtypes, options.rounds, options.without)
            show_document(found)
            if options.json:
                document.write(options.json, found)
            kept &= show("A ragged batch", list(ragged(load([spec])[0], options.rounds)))
            points = measurements([found])
            kept &= show(
                "Ratios, of medians of one run", [each for point in points for each in ratios(point, options.without)]
            )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
