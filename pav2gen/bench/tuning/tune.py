"""Implements ``pav2gen tune``: finds the fastest partition sizes on this device, and writes them to a tuning file.

``pav2gen build`` reads this file. Each problem is measured in several runs. A measurement becomes a row of the file
only if the runs agree. Noisy measurements and kernels with wrong results are recorded too, but have no effect.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pav2gen.bench.measuring import machine
from pav2gen.bench.measuring.bench import GIB, Setup, now, ranks
from pav2gen.bench.measuring.clock import interleave
from pav2gen.bench.measuring.contestants import Checker, Contestant
from pav2gen.bench.measuring.problem import Problem, rotation
from pav2gen.bench.tuning.progress import Journal
from pav2gen.bench.tuning.tuning_writer import Group, Measured, write
from pav2gen.errors import UserError
from pav2gen.family.spec import Spec
from pav2gen.json_data import fields, items, mapping, positive, prose, word
from pav2gen.reading import tuning_file as tuning
from pav2gen.reading.selection import Selection
from pav2gen.reading.tuning_file import LEAST_RUNS, MOST_SPREAD
from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.op import device_name

#: A partition size is chosen only if its time in every run exceeds the time of the run's fastest size by at most this
#: fraction. A user does not notice such a difference.
TIE = 0.02

#: A function that checks a measurement from the journal. A measurement has two dicts by partition size: the times of
#: the runs ("ms"), and for every other size, the reason why it was not timed ("wrong").
MEASUREMENT = fields({"ms": mapping(word, items(positive)), "wrong": mapping(word, prose)})

#: The number of decimals of a time in milliseconds in the tuning file. So the resolution is a nanosecond.
DIGITS = 6


@dataclass(frozen=True)
class TuneOptions:
    """The options of ``pav2gen tune``.

    num_seqs, seq_lens: the numbers of sequences in a batch, and of tokens in a sequence, to measure. If ``seq_lens`` is
    None, ``lengths_of`` decides the lengths.
    rounds: the number of samples of each kernel in a run.
    runs: the number of runs in which each problem is measured.
    replace: whether to drop the rows of an existing tuning file that are not measured again.
    command: the command line, which is recorded in the tuning file.
    warmups, max_gib, progress: as in ``bench.BenchOptions``.
    """

    device: torch.device
    num_seqs: tuple[int, ...]
    seq_lens: tuple[int, ...] | None = None
    rounds: int = 7
    warmups: int = 2
    runs: int = 3
    max_gib: float = 2.0
    replace: bool = False
    command: str = "pav2gen tune"
    progress: Callable[[str, int], Callable[[], object]] = lambda what, total: lambda: None


@dataclass(frozen=True)
class Outcome:
    """What a run of ``pav2gen tune`` wrote, and the messages for the user.

    path: the tuning file that was written.
    rows: the number of rows in this file.
    noisy: a message for each measurement that the file leaves out, for example because its times differ too much.
    wrong: a message for each problem in which a kernel gave a wrong result.
    notes: other messages.
    """

    path: Path
    rows: int
    noisy: tuple[str, ...]
    wrong: tuple[str, ...]
    notes: tuple[str, ...]


def tune(chosen: Selection, options: TuneOptions) -> Outcome:
    """Measure the decode kernels of ``chosen``, and write the tuning file of this device.

    Raises UserError if no configuration (``Key``) has several partition sizes to choose from, or if an existing tuning
    file has rows that would be lost.
    """
    with machine.current(options.device):
        return _tune(chosen, options)


def _tune(chosen: Selection, options: TuneOptions) -> Outcome:
    path = tuning.path_of(chosen.path, chosen.spec.name, device_name(options.device))
    setup = Setup(chosen, options.device)
    every, notes = problems(setup, options)
    _check_replaced(path, chosen.spec, every, options)
    journal = Journal(path.with_suffix(".partial"), _circumstances(setup, options), MEASUREMENT)
    if journal.found:
        notes.append(f"resumed: {journal.found} of {len(every)} measurements were made before")
    groups: dict[tuple[Key, str, int], Group] = {}
    for problem, backend in every:
        entry = journal.entries.get(_id(problem, backend)) or _measure(setup, problem, backend, options, journal)
        of = (problem.key, backend, problem.kv_heads)
        groups.setdefault(of, Group(*of)).add(decide(problem, entry["ms"], entry["wrong"]))
    write(path, _head(setup, options), list(groups.values()))
    tuning.load(path, chosen.spec)  # report at once what a build would refuse
    journal.remove()
    return _outcome(path, list(groups.values()), [*setup.notes, *notes])


def problems(setup: Setup, options: TuneOptions) -> tuple[list[tuple[Problem, str]], list[str]]:
    """Return the problems to measure, each with a backend, and a note on each problem with too large a KV cache.

    Raises UserError if there is no problem to measure.
    """
    found: dict[tuple[Problem, str], None] = {}
    notes = []
    lengths = options.seq_lens or lengths_of(setup.spec)
    for key, rows in setup.keys.items():
        backends = [backend for backend in setup.backends if _has_choice(rows, backend)]
        for rank in ranks(setup.spec, key):
            for num_seqs in options.num_seqs:
                for seq_len in lengths:
                    problem = Problem(key, rank.num_kv_heads, num_seqs, seq_len, rows[0].modification)
                    if problem.kv_bytes > options.max_gib * GIB:
                        notes.append(
                            f"left out, because the KV cache is larger than --max-gib {options.max_gib:g}: {problem}"
                        )
                    else:
                        found |= {(problem, backend): None for backend in backends}
    if not found and notes:
        raise UserError(
            f"every problem has a KV cache larger than --max-gib {options.max_gib:g}; raise it, or shorten --seq-len"
        )
    if not found:
        raise UserError(
            f"{setup.spec.name} has no partition size to choose: each key has only one, or dispatch.partition fixes it"
        )
    return list(found), list(dict.fromkeys(notes))


def _has_choice(rows: Sequence[Row], backend: str) -> bool:
    """Whether the dispatch table may choose between several partition sizes for ``backend``.

    rows: all dispatch rows of one ``Key``.
    """
    return sum(bool(getattr(row, backend)) for row in rows) > 1 and not rows[0].fixed_partition


def lengths_of(spec: Spec) -> tuple[int, ...]:
    """Return the sequence lengths to measure: the powers of two above the spec's ``min_seq_len``, up to the model's
    full length.

    If there are no such powers, return only the full length.
    """
    first = max(spec.dispatch.min_seq_len, 1).bit_length()
    powers = [1 << n for n in range(first, spec.model.max_seq_len.bit_length())]
    return tuple(powers) or (spec.model.max_seq_len,)


def decide(problem: Problem, times: Mapping[str, Sequence[float]], wrong: Mapping[str, str]) -> Measured:
    """Choose the fastest partition size for ``problem`` from the times of several runs, or say why none is chosen.

    times: for each partition size, the time in each run, in milliseconds.
    wrong: for each other partition size, why its result is wrong.
    """
    times = {size: [round(time, DIGITS) for time in runs] for size, runs in times.items()}
    medians = {int(size): statistics.median(runs) for size, runs in times.items()}
    best = min(medians, key=lambda size: medians[size], default=0)
    runs = times.get(str(best), [])
    spread = (max(runs) - min(runs)) / medians[best] if runs and medians[best] > 0 else 0.0
    because = _doubt(best, spread, times)
    chosen = 0 if because else best
    return Measured(problem.num_seqs, problem.seq_len, chosen, medians, round(spread, 4), because, wrong)


def _doubt(best: int, spread: float, times: Mapping[str, Sequence[float]]) -> str:
    """Return the reason to doubt that the partition size ``best`` is the fastest, or an empty text if there is none.

    spread: the range of the times of ``best`` in all runs, divided by their median.
    times: for each partition size, the time in each run, in milliseconds.
    """
    if len(times) < 2:
        return "fewer than two partition sizes gave right results"
    if any(time <= 0 for runs in times.values() for time in runs):
        return "a time of 0 ms: the clock is too coarse for these calls"
    if min(map(len, times.values())) < LEAST_RUNS:
        return "one run does not show how noisy the times are"
    if spread > MOST_SPREAD:
        return f"noisy: the times of {best} differ by {spread:.0%}"
    for number, of_run in enumerate(zip(*times.values()), start=1):
        lost = times[str(best)][number - 1] / min(of_run) - 1
        if lost > TIE:
            return f"noisy: {best} has the fastest median, but is {lost:.0%} slower than the fastest in run {number}"
    return ""


def _measure(setup: Setup, problem: Problem, backend: str, options: TuneOptions, journal: Journal) -> dict[str, Any]:
    """Time the kernels of one problem and backend in several runs with different inputs.

    Add an entry to the journal, and return it. The entry has the times of the kernels with right results, and says
    what is wrong with the results of the other kernels.
    """
    every = [c for c in setup.kernels(problem.key) if c.backend == backend]
    total = len(every) * (1 + options.runs * (options.rounds + options.warmups))
    step = options.progress(f"{backend} {problem.label}", total)
    wrong = _wrong(setup, problem, every, step)
    right = {_size(c): c.run for c in every if _size(c) not in wrong}
    times: dict[str, list[float]] = {size: [] for size in right}
    for run in range(options.runs):
        inputs = setup.inputs(problem, seed=run)
        with torch.no_grad():
            taken = interleave(right, rotation(inputs), setup.device, options.rounds, options.warmups, step)
        for size, each in taken.items():
            times[size].append(each.median)
    entry = {"ms": times, "wrong": wrong}
    journal.add(_id(problem, backend), entry)
    return entry


def _wrong(setup: Setup, problem: Problem, every: Sequence[Contestant], step: Callable[[], object]) -> dict[str, str]:
    """Return a dict from each partition size with wrong results to what is wrong.

    every: the kernels to check, one for each partition size.
    step: a function to call after each check, to advance the progress bar.
    """
    inputs = setup.inputs(problem)
    checker, found = Checker(problem, inputs), {}
    for contestant in every:
        with torch.no_grad():
            _, because = checker.verdict(contestant, inputs.first)
        if because:
            found[_size(contestant)] = because
        step()
    return found


def _size(contestant: Contestant) -> str:
    assert contestant.row is not None
    return str(contestant.row.partition_size)


def _id(problem: Problem, backend: str) -> str:
    return f"{backend} {problem}"


def _circumstances(setup: Setup, options: TuneOptions) -> dict[str, object]:
    """Return the conditions under which this run measures. Only measurements with equal conditions are comparable."""
    return {
        "package": setup.digest,
        "device": machine.describe(setup.device),
        "versions": machine.versions(),
        "settings": [options.rounds, options.warmups, options.runs],
    }


def _head(setup: Setup, options: TuneOptions) -> dict[str, object]:
    """Return the fields at the top of the tuning file, such as the device, the date and the command line."""
    described = machine.describe(setup.device)
    return {
        "schema": tuning.SCHEMA,
        "spec": setup.spec.name,
        "device": described["name"],
        "about": described["about"],
        "date": now(),
        "command": options.command,
        "versions": machine.versions(),
        "rounds": options.rounds,
        "runs": options.runs,
    }


def _check_replaced(path: Path, spec: Spec, every: Sequence[tuple[Problem, str]], options: TuneOptions) -> None:
    """Raise UserError if this run would drop rows of the tuning file at ``path``, unless ``options.replace`` allows it.

    every: the problems that this run measures, each with a backend.
    """
    if not path.exists() or options.replace:
        return
    try:
        rows = tuning.load(path, spec).rows
    except UserError:
        return  # a broken file has no valid rows, and a new run replaces it
    measured = {(p.key, backend, p.kv_heads, p.num_seqs, p.seq_len) for p, backend in every}
    lost = [row for row in rows if (row.key, row.backend, row.kv_heads, row.num_seqs, row.max_seq_len) not in measured]
    if lost:
        raise UserError(
            f"holds {len(lost)} of {len(rows)} rows that this command does not measure again, and would lose; "
            f"measure them too, or add --replace", str(path)
        )  # fmt: skip


def _outcome(path: Path, groups: Sequence[Group], notes: Sequence[str]) -> Outcome:
    at = [
        (each, f"{group.backend} {group.key} kv_heads={group.kv_heads} S={each.num_seqs} L={each.max_seq_len}")
        for group in groups
        for each in group.measured
    ]
    return Outcome(
        path=path,
        rows=sum(not each.because for each, _ in at),
        noisy=tuple(f"{where}: {each.because}" for each, where in at if each.because),
        wrong=tuple(f"{where}: p{size} {why}" for each, where in at for size, why in each.wrong.items()),
        notes=tuple(notes),
    )
