"""What the PyTorch kernels must show on a CPU: ratios to their peers, from one run, and what a call costs beside time.

    python benches/against_peers.py
    python benches/against_peers.py --dtype bfloat16 --rounds 9 --json peers.json
    python benches/against_peers.py --dtype bfloat16 --rounds 3 --without seed      # a few minutes
    python benches/against_peers.py --dtype bfloat16 --only 1x8192,8x1000,ragged    # a part

24 query and 4 KV heads of 256, pages of 16. Times are of the whole call with the kernel that the dispatch table
chooses. Those of long calls are medians of interleaved rounds. Short calls are measured warm and cold, as
short_calls.py says: the warm minimum decides, and the ratio of the cold medians stands beside it. Exits with 1 where a
requirement is missed.
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
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))
import short_calls

from pav2gen.bench.commands import progress
from pav2gen.bench.measuring import measurement_file as document
from pav2gen.bench.measuring import table
from pav2gen.bench.measuring.bench import BenchOptions, Setup, empty, entries_of
from pav2gen.bench.measuring.bench import measure as measure_long
from pav2gen.bench.measuring.clock import interleave
from pav2gen.bench.measuring.contestants import baselines, launches, operate, workspace_bytes
from pav2gen.bench.measuring.problem import Problem
from pav2gen.bench.reporting.measurement_rows import Measurement, measurements
from pav2gen.reading.selection import Selection, load
from pav2gen.runtime.call import Call
from pav2gen.runtime.choice.dispatch_row import Row
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
    ((1, 8, 64), (512,), ("sdpa", "vllm")),
    ((1, 64), (1000,), ("sdpa", "vllm")),
    ((8,), (1000,), ("sdpa", "flex", "vllm")),
    ((1,), (8192, 32768), ("sdpa", "flex", "vllm")),
    ((1,), (100_000,), ("sdpa", "flex", "seed", "vllm")),
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

#: Parts of a run that are not problems: what a call costs beside time, and the ragged batch.
PARTS = ("costs", "ragged")


class Verdict(NamedTuple):
    """A requirement and what was found."""

    what: str
    found: str
    kept: bool


def required(dtype: str, num_seqs: int, seq_len: int, has_vllm: bool) -> dict[str, float]:
    """The least ratio of the time of each peer to ours. A peer of which nothing is required is left out.

    has_vllm: whether vLLM's kernel was measured. Nothing is required of a kernel that is not installed.
    """
    found = {
        "seed": AGAINST_SEED.get((dtype, num_seqs, seq_len)),
        "sdpa": AGAINST_SDPA_SHORT if seq_len < SHORT else AGAINST_SDPA,
        "vllm": against_vllm(dtype, seq_len) if has_vllm else None,
    }
    return {peer: least for peer, least in found.items() if least is not None}


def against_vllm(dtype: str, seq_len: int) -> float | None:
    """The least ratio of the time of vLLM's kernel to ours, or None if nothing is required."""
    fitting = [
        (length, ratio)
        for (length, required_dtype), ratio in AGAINST_VLLM.items()
        if dtype == required_dtype and length <= seq_len
    ]
    return max(fitting)[1] if fitting else None


def ratios(point: Measurement, without: Collection[str] = ()) -> Iterator[Verdict]:
    """What one long call must show, but for the peers in ``without``: ratios of medians."""
    dtype, num_seqs = point.point["key"]["dtype"], point.point["num_seqs"]
    has_vllm = any(entry["name"] == "vllm" and "median_ms" in entry for entry in point.point["contestants"])
    for peer, least in required(dtype, num_seqs, point.seq_len, has_vllm).items():
        if peer not in without:
            ratio = point.ratio("torch", peer)
            what = f"{dtype:8} S={num_seqs} L={point.seq_len:<6} x {peer} >= {least:.3g}"
            yield Verdict(what, f"{ratio:.3g}" if ratio else "not measured", ratio is not None and ratio >= least)


def short_ratios(point: Mapping[str, Any], without: Collection[str] = ()) -> Iterator[Verdict]:
    """What one short call must show, but for the peers in ``without``: ratios of the warm minima.

    The ratio of the cold medians is named beside each. point: what ``measure_short`` returns.
    """
    entries = {entry["name"]: entry for entry in point["contestants"] if "warm_min_ms" in entry}
    ours = next((entry for entry in entries.values() if "symbol" in entry), None)
    dtype, num_seqs, seq_len = point["dtype"], point["num_seqs"], point["seq_len"]
    for peer, least in required(dtype, num_seqs, seq_len, "vllm" in entries).items():
        if peer in without:
            continue
        what = f"{dtype:8} S={num_seqs} L={seq_len:<6} x {peer}, warm >= {least:.3g}"
        if ours is None or peer not in entries:
            yield Verdict(what, "not measured", False)
            continue
        warm, cold = (entries[peer][f"{figure}_ms"] / ours[f"{figure}_ms"] for figure in ("warm_min", "cold_median"))
        yield Verdict(what, f"{warm:.3g} (cold {cold:.3g})", warm >= least)


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


def chosen_problems(only: Collection[str]) -> list[tuple[int, int, tuple[str, ...]]]:
    """Sequences, length and peers of each problem, in the order of ``PROBLEMS``.

    only: the problems to keep, such as ``1x8192``. If it is empty, all are kept.
    """
    every = [(num_seqs, length, peers) for seqs, lengths, peers in PROBLEMS for num_seqs in seqs for length in lengths]
    return [each for each in every if not only or f"{each[0]}x{each[1]}" in only]


def measure(
    spec: Path, dtypes: Sequence[str], rounds: int, without: Collection[str], only: Collection[str] = ()
) -> dict[str, Any]:
    """One bench document of all problems, or of those in ``only``, without some peers.

    Its ``points`` are the long calls. The short ones are in ``short``.
    """
    found: dict[str, Any] = {}
    with progress() as bar:
        for dtype in dtypes:
            setup = Setup(load([spec], [f"dtype={dtype}"])[0], torch.device("cpu"))
            for num_seqs, seq_len, peers in chosen_problems(only):
                against = tuple(peer for peer in peers if peer not in without)
                options = BenchOptions(
                    setup.device, (seq_len,), (num_seqs,), against, rounds=rounds, progress=bar,
                    command="python benches/against_peers.py",
                )  # fmt: skip
                found = found or {**empty(setup, options, ()), "short": []}
                (key,) = setup.keys
                problem = Problem(key, 4, num_seqs, seq_len)
                if short_calls.is_short(problem):
                    found["short"].append(measure_short(setup, problem, options))
                else:
                    found["points"].append(measure_long(setup, problem, options))
    return found


def measure_short(setup: Setup, problem: Problem, options: BenchOptions) -> dict[str, Any]:
    """Check and measure a short call: what a point of a bench document has, with warm and cold times."""
    peers, absent = baselines(problem, options.against)
    every = [*setup.kernels(problem.key), *peers]
    step = options.progress(problem.label, len(every) + 1)
    inputs = setup.inputs(problem)
    entries = entries_of(every, problem, inputs, setup.device, step)
    racing = {contestant.name: contestant.run for contestant in every if not entries[contestant.name]["because"]}
    with torch.no_grad():
        for name, figures in short_calls.measure(racing, inputs, setup.cache_bytes).items():
            entries[name] |= figures.document()
    step()
    absences = [{"name": name, "because": reason} for name, reason in absent.items()]
    return {
        "dtype": problem.key.dtype,
        "num_seqs": problem.num_seqs,
        "seq_len": problem.seq_len,
        "contestants": [*entries.values(), *absences],
    }


def show(title: str, verdicts: Sequence[Verdict]) -> bool:
    """Print what was required and found; whether all was kept."""
    print(f"\n{title}")
    for verdict in verdicts:
        print(f"  {'ok    ' if verdict.kept else 'MISSED'}  {verdict.what}: {verdict.found}")
    return all(verdict.kept for verdict in verdicts)


def show_ratios(found: Mapping[str, Any], without: Collection[str]) -> bool:
    """Print the ratios of one run that are required; whether all were kept."""
    short = [each for point in found["short"] for each in short_ratios(point, without)]
    long = [each for point in measurements([found]) for each in ratios(point, without)]
    kept = not short or show("Ratios of short calls, of warm minima of one run", short)
    return (not long or show("Ratios of long calls, of medians of one run", long)) and kept


def show_document(found: Mapping[str, Any]) -> None:
    """Print the figures as ``pav2gen bench`` does."""
    for line in table.head(found):
        print(line)
    for warmth in ("warm", "cold"):
        if found["short"]:
            Console(width=120).print(short_table(found["short"], warmth))
    for each in table.tables(found):
        Console(width=120).print(each)
    for line in table.notes(found):
        print(line)


def short_table(points: Sequence[Mapping[str, Any]], warmth: str) -> Table:
    """The table of the short calls: microseconds, and how many times as long each peer takes. warmth: warm or cold."""
    figure = {"warm": "min", "cold": "median"}[warmth]
    title = f"short calls, {warmth}; x: times as long as ours, by the {figure}"
    held = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in ("dtype", "S", "L", "contestant", "min, us", "median, us", "x", "calls"):
        held.add_column(column, justify="left" if column in ("dtype", "contestant") else "right", no_wrap=True)
    for point in points:
        timed = [entry for entry in point["contestants"] if "warm_min_ms" in entry]
        ours = next((entry for entry in timed if "symbol" in entry), None)
        for number, entry in enumerate(timed):
            head = (point["dtype"], str(point["num_seqs"]), str(point["seq_len"])) if not number else ("", "", "")
            name = f"{warmth}_{figure}_ms"
            ratio = "" if ours is None or entry is ours else f"{entry[name] / ours[name]:.2f}"
            times = (f"{entry[f'{warmth}_{what}_ms'] * 1e3:.0f}" for what in ("min", "median"))
            launched = "-" if entry["launches"] is None else str(entry["launches"])
            held.add_row(*head, entry["name"], *times, ratio, launched, end_section=entry is timed[-1])
    missing = [
        f"{each['name']}: {each['because']}" for point in points for each in point["contestants"] if each["because"]
    ]
    held.caption, held.caption_justify = "\n".join(dict.fromkeys(missing)), "left"
    return held


def parts_of(text: str) -> list[str]:
    """The parts of a run that a value of ``--only`` names: problems such as ``1x8192``, ``costs`` and ``ragged``.

    Raises argparse.ArgumentTypeError for a name that is none of these.
    """
    names = [f"{num_seqs}x{length}" for num_seqs, length, _ in chosen_problems(())]
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if name not in (*names, *PARTS):
            raise argparse.ArgumentTypeError(
                f"{name!r} is not a part of a run; there are {', '.join((*PARTS, *names))}"
            )
    return found


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
    parser.add_argument(
        "--only", type=parts_of, default=[], metavar="PARTS",
        help="only these parts, such as 1x8192,8x1000,costs,ragged; one run of all parts takes many minutes",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--costs-only", action="store_true", help="no times: only workspace and calls")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "peers.yaml")
        spec.write_text(SPEC, "utf-8")
        kept, only = True, ["costs"] if options.costs_only else options.only
        if not only or "costs" in only:
            kept &= show("What a call costs beside time", list(costs(load([spec])[0])))
        if not only or set(only) - set(PARTS):
            found = measure(spec, options.dtype or dtypes, options.rounds, options.without, only)
            show_document(found)
            if options.json:
                document.write(options.json, found)
            kept &= show_ratios(found, options.without)
        if not only or "ragged" in only:
            kept &= show("A ragged batch", list(ragged(load([spec])[0], options.rounds)))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
