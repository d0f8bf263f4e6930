"""How much slower a call becomes on a busy machine: each problem alone, then beside two processes that never rest.

    python benches/busy.py
    OMP_WAIT_POLICY=passive python benches/busy.py
    PAV2_WORKERS=never python benches/busy.py --only 1x8192 8x8192 --without sdpa

Each figure comes from a process that runs one contestant only, because the threads of one contestant disturb another.
All figures are medians in milliseconds. Exits with 1 where a ratio is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from against_peers import SPEC

from pav2gen.bench.measuring.baselines import sdpa
from pav2gen.bench.measuring.bench import Setup
from pav2gen.bench.measuring.contestants import operate
from pav2gen.bench.measuring.problem import Problem, rotation
from pav2gen.reading.selection import load
from pav2gen.runtime.call import Call
from pav2gen.runtime.choice.dispatch_row import Row

#: Sequences, tokens, and the most times as slow that a call may be: long calls, then short ones.
PROBLEMS = (
    (1, 100_000, 2.5),
    (8, 8192, 2.5),
    (1, 8192, 2.5),
    (8, 1000, 6.0),
    (1, 1000, 6.0),
    (8, 16, 6.0),
    (1, 16, 6.0),
)
CONTESTANTS = ("ours", "sdpa")

#: Seconds of one measurement, and the fewest calls of it.
SECONDS, FEWEST = 2.0, 3

LOOP = "while True: pass"


def measured(contestant: str, num_seqs: int, seq_len: int) -> float:
    """The median milliseconds of a call, in this process."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        spec = Path(folder, "peers.yaml")
        spec.write_text(SPEC, "utf-8")
        setup = Setup(load([spec], ["dtype=bfloat16"])[0], torch.device("cpu"))
        (row,) = setup.package.operator.table.rows
        calls = rotation(setup.inputs(Problem(row.key, 4, num_seqs, seq_len)))
        ours = functools.partial(_ours, setup.package, row)
        run = ours if contestant == "ours" else sdpa
        run(next(calls))
        taken: list[float] = []
        for call in itertools.islice(calls, 1 << 20):
            start = time.perf_counter()
            run(call)
            taken.append(time.perf_counter() - start)
            if len(taken) >= FEWEST and sum(taken) > SECONDS:
                break
    return statistics.median(taken) * 1e3


def _ours(package: ModuleType, row: Row, call: Call) -> None:
    operate(package, call, row, "torch")


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """A context in which so many other processes use the processor without a pause."""
    running = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def in_process(contestant: str, num_seqs: int, seq_len: int) -> float:
    """``measured`` in a new process."""
    command = [sys.executable, __file__, "--one", contestant, str(num_seqs), str(seq_len)]
    return float(subprocess.run(command, check=True, capture_output=True, encoding="ascii").stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print each problem, alone and beside the loops."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loops", type=int, default=2, help="processes that use the processor")
    parser.add_argument("--one", nargs=3, metavar=("CONTESTANT", "SEQS", "TOKENS"), help="print one figure alone")
    parser.add_argument("--only", nargs="+", choices=[f"{n}x{length}" for n, length, _ in PROBLEMS], help="problems")
    parser.add_argument("--without", choices=CONTESTANTS, help="a contestant to leave out")
    options = parser.parse_args(arguments)
    if options.one:
        print(measured(options.one[0], int(options.one[1]), int(options.one[2])))
        return 0
    kept = True
    print(f"sequences x tokens  contestant  alone, ms  beside {options.loops} loops, ms  ratio")
    for num_seqs, seq_len, most in PROBLEMS:
        if options.only and f"{num_seqs}x{seq_len}" not in options.only:
            continue
        for contestant in CONTESTANTS:
            if contestant == options.without:
                continue
            alone = in_process(contestant, num_seqs, seq_len)
            with busy(options.loops):
                beside = in_process(contestant, num_seqs, seq_len)
            ratio, verdict = beside / alone, ""
            if contestant == "ours":
                kept &= ratio <= most
                verdict = f"<= {most}: {'ok' if ratio <= most else 'MISSED'}"
            print(
                f"{num_seqs:2} x {seq_len:<13,} {contestant:11} {alone:9.2f} {beside:21.2f} {ratio:6.2f} {verdict}",
                flush=True,
            )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
