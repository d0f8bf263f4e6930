"""Implements ``pav2gen bench``: checks and times the kernels of a spec and the baselines. Returns a JSON document."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from pav2gen.bench.measuring import machine
from pav2gen.bench.measuring.clock import Times, interleave
from pav2gen.bench.measuring.contestants import Checker, Contestant, baselines, kernels, launches, workspace_bytes
from pav2gen.bench.measuring.measurement_file import KIND, SCHEMA
from pav2gen.bench.measuring.package import measured
from pav2gen.bench.measuring.problem import Inputs, Problem, make, rotation
from pav2gen.errors import UserError
from pav2gen.family.spec import RankShape, Spec
from pav2gen.reading.selection import Selection
from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.op import device_name
from pav2gen.wording import one_of

HOST_NOTE = "the CUDA kernels are not timed on a CPU: the speed of the host runtime says nothing about a GPU"

GIB = 1 << 30

NO_EXTEND = "no decode kernel is left to measure; for extend kernels, write --operator extend"

#: ``estimate`` assumes that the time to measure a problem is proportional to the size of its KV cache, in bytes, plus
#: this number. The number stands for the part of the time that does not depend on the KV cache.
FIXED_BYTES = 64 << 20


@dataclass(frozen=True)
class BenchOptions:
    """The options of ``pav2gen bench`` for decode kernels.

    seq_lens, num_seqs: the numbers of tokens in a sequence, and of sequences in a batch, to measure.
    against: the names of the baselines to measure.
    tensor_parallel: the tensor-parallel size to measure. If ``tensor_parallel`` is None, each kernel is measured with
    the smallest tensor-parallel size that it can serve.
    rounds, warmups: the number of timed rounds, and of rounds before them whose times are dropped.
    max_gib: the largest KV cache of a problem, in GiB. Problems with a larger KV cache are left out.
    seconds: how many seconds after the start of the measurement the last problem may begin. 0 means no limit.
    command: the command line, which is recorded in the JSON document.
    progress: a function that takes a problem's title and number of steps, and returns a function to call after each
    step.
    kept: a function to call after each problem. The function takes the JSON document so far, and the estimated seconds
    that remain.
    """

    device: torch.device
    seq_lens: tuple[int, ...]
    num_seqs: tuple[int, ...]
    against: tuple[str, ...] = ("sdpa", "seed", "vllm")
    tensor_parallel: int | None = None
    rounds: int = 7
    warmups: int = 2
    max_gib: float = 2.0
    seconds: float = 0.0
    command: str = "pav2gen bench"
    progress: Callable[[str, int], Callable[[], object]] = lambda what, total: lambda: None
    kept: Callable[[dict[str, Any], float], object] = lambda document, remaining: None


class Setup:
    """What all problems of a measurement share: the device, the generated package, and the dispatch rows of its decode
    kernels by kernel key.
    """

    def __init__(self, chosen: Selection, device: torch.device) -> None:
        self.spec: Spec = chosen.spec
        self.device = device
        self.package, self.digest = measured(chosen)
        self.cache_bytes = machine.cache_bytes(device)
        self.notes: list[str] = []
        self.backends = self._backends()
        self.keys: dict[Key, list[Row]] = {}
        for row in self.package.operator.table.rows:
            self.keys.setdefault(row.key, []).append(row)

    def _backends(self) -> tuple[str, ...]:
        """Return the backends (``torch``, ``cuda``) that can be timed on this device. On a GPU, compile the CUDA
        kernels first.

        Raises UserError if no backend can be timed on this device.
        """
        found = [name for name in self.spec.backends if name == "torch"]
        if "cuda" in self.spec.backends and self.device.type == "cuda":
            self.package.load()
            if self.package.kernels.libraries:
                found.append("cuda")
            else:
                self.notes.append(
                    "the CUDA kernels are not timed: no library of them could be loaded; the log says why"
                )
        elif "cuda" in self.spec.backends:
            self.notes.append(HOST_NOTE)
        if not found:
            raise UserError(f"{self.spec.name} has no kernel that can be timed on this device; {HOST_NOTE}")
        return tuple(found)

    def kernels(self, key: Key) -> list[Contestant]:
        """Return a ``Contestant`` for each decode kernel with the configuration ``key`` and each backend to time."""
        return kernels(self.package, self.keys[key], self.backends)

    def inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Make the calls of ``problem`` on the device of this measurement.

        seed: the seed of the random values, and of the random order of the pages.
        """
        return make(problem, self.device, self.cache_bytes, seed)


def ranks(spec: Spec, key: Key, tensor_parallel: int | None = None) -> list[RankShape]:
    """Return the tensor-parallel ranks (their numbers of heads) that kernels with the configuration ``key`` can serve.

    tensor_parallel: the only tensor-parallel size to consider, or None for all sizes of the spec.
    """
    shapes = [rank for rank in spec.model.ranks() if rank.gqa_ratio == key.gqa_ratio]
    return [rank for rank in shapes if tensor_parallel in (None, rank.tensor_parallel)]


def problems(setup: Setup, options: BenchOptions) -> tuple[list[Problem], list[str]]:
    """Return the problems to measure, and a note on each problem that is left out because its KV cache is too large.

    Raises UserError if there is no problem to measure.
    """
    found, notes = [], []
    sizes = [rank.tensor_parallel for key in setup.keys for rank in ranks(setup.spec, key)]
    if options.tensor_parallel and options.tensor_parallel not in sizes:
        works = f"write {one_of(sorted(set(sizes)))}" if sizes else "choose other kernels with --filter"
        raise UserError(f"--tensor-parallel {options.tensor_parallel} does not fit the chosen kernels; {works}")
    for key in setup.keys:
        for rank in ranks(setup.spec, key, options.tensor_parallel)[:1]:
            for num_seqs in options.num_seqs:
                for seq_len in options.seq_lens:
                    problem = Problem(key, rank.num_kv_heads, num_seqs, seq_len, setup.keys[key][0].modification)
                    if problem.kv_bytes > options.max_gib * GIB:
                        notes.append(
                            f"left out, because the KV cache is larger than --max-gib {options.max_gib:g}: {problem}"
                        )
                    else:
                        found.append(problem)
    if not found:
        raise UserError(NO_EXTEND if not setup.keys else "no problem is left to measure; check --max-gib and --filter")
    return found, notes


def bench(chosen: Selection, options: BenchOptions) -> dict[str, Any]:
    """Measure the decode kernels of ``chosen``, and return the JSON document that docs/bench.md describes.

    If Ctrl-C interrupts the measurement, the document has the results so far, and a note says how many problems are
    missing. Raises UserError if there is no problem to measure, or if no kernel can be timed on the device.
    """
    with machine.current(options.device):
        setup = Setup(chosen, options.device)
        every, notes = problems(setup, options)
        document = empty(setup, options, notes)
        try:
            _measure_all(setup, every, options, document)
        except KeyboardInterrupt:
            note_rest(document, every, INTERRUPTED)
    return document


#: The first word of the note that a JSON document has if the user interrupted its measurement.
INTERRUPTED = "interrupted"


def interrupted(document: Mapping[str, Any]) -> bool:
    """Whether the user interrupted the measurement that ``document`` describes."""
    return any(note.startswith(INTERRUPTED) for note in document["notes"])


def _measure_all(setup: Setup, every: Sequence[Problem], options: BenchOptions, document: dict[str, Any]) -> None:
    """Measure the problems ``every``, and append the results of each one to ``points`` of ``document``.

    If ``options.seconds`` is not 0, no further problem begins when that many seconds have passed.
    """
    started = time.monotonic()
    for number, problem in enumerate(every):
        if number and options.seconds and time.monotonic() - started > options.seconds:
            note_rest(document, every, f"out of time after {options.seconds:g} s")
            break
        document["points"].append(measure(setup, problem, options))
        document["date"] = now()
        options.kept(document, estimate(every, number + 1, time.monotonic() - started))


def note_rest(document: dict[str, Any], every: Sequence[object], why: str) -> None:
    """Add a note to ``document`` that says how many problems were not measured, and why.

    every: all problems of the measurement, including those that were measured.
    why: the first words of the note, which give the reason, such as ``interrupted``.
    """
    missing = every[len(document["points"]) :]
    document["notes"].append(
        f"{why}: {len(missing)} of {len(every)} problems were not measured; the first is {missing[0]}"
    )


def estimate(every: Sequence[Problem], measured: int, seconds: float) -> float:
    """Estimate how many seconds the remaining problems of ``every`` take, if the first ``measured`` ones took
    ``seconds``.

    The estimate assumes that each problem takes the same constant time, plus a time proportional to the size of its KV
    cache.
    """
    weights = [problem.kv_bytes + FIXED_BYTES for problem in every]
    return seconds * sum(weights[measured:]) / sum(weights[:measured])


def empty(setup: Setup, options: BenchOptions, notes: Sequence[str]) -> dict[str, Any]:
    """Return a JSON document that describes the machine, the spec and the settings, but has no results yet.

    notes: the notes of the document. The notes of ``setup`` are added.
    """
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "date": now(),
        "command": options.command,
        "device": machine.describe(options.device),
        "versions": machine.versions(),
        "spec": {"name": setup.spec.name, "file": setup.spec.file_name, "sha256": setup.spec.sha256},
        "package": setup.digest,
        "settings": {"rounds": options.rounds, "warmups": options.warmups, "cache_bytes": setup.cache_bytes},
        "notes": [*setup.notes, *notes],
        "points": [],
    }


def now() -> str:
    """The current time in UTC, to the second, in ISO 8601 format."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def measure(setup: Setup, problem: Problem, options: BenchOptions) -> dict[str, Any]:
    """Measure one problem, and return the results as an entry for ``points`` of the JSON document.

    First, check the results of every contestant (a kernel or a baseline), and find how many launches and how much
    memory its call needs. Then time the contestants with right results side by side.
    """
    peers, absent = baselines(problem, options.against)
    every = [*setup.kernels(problem.key), *peers]
    rounds = options.rounds, options.warmups
    step = options.progress(problem.label, len(every) + (len(every) + 1) * sum(rounds))
    inputs = setup.inputs(problem)
    entries = entries_of(every, problem, inputs, setup.device, step)
    racing = {c.name: c.run for c in every if not entries[c.name]["because"]}
    copy, copy_bytes = machine.copy(setup.device, setup.cache_bytes)
    with torch.no_grad():
        slow = [peer.name for peer in peers]
        times = interleave({**racing, "copy": copy}, rotation(inputs), setup.device, *rounds, step, slow)
    bandwidth = copy_bytes / times.pop("copy").median / 1e6
    for name, taken in times.items():
        entries[name] |= figures(taken, problem, bandwidth)
    absences = [{"name": name, "because": reason} for name, reason in absent.items()]
    return {
        "key": problem.key._asdict(),
        "num_heads": problem.num_heads,
        "kv_heads": problem.kv_heads,
        "num_seqs": problem.num_seqs,
        "seq_len": problem.seq_len,
        "kv_bytes": problem.kv_bytes,
        "io_bytes": problem.io_bytes,
        "input_sets": inputs.count,
        "copy_gbps": round(bandwidth, 3),
        "chosen": {backend: chosen_kernel(setup.package, problem, backend, setup.device) for backend in setup.backends},
        "contestants": [*entries.values(), *absences],
    }


@torch.no_grad()
def entries_of(
    every: Sequence[Contestant], problem: Problem, inputs: Inputs, device: torch.device, step: Callable[[], object]
) -> dict[str, dict[str, Any]]:
    """Check the results of every contestant (a kernel or a baseline).

    Return a dict from the contestant's name to its entry in the JSON document. The times are added later. An entry says
    whether the results are right. If the results are right, the entry also has the number of launches, and the
    workspace in bytes.
    """
    checker, call = Checker(problem, inputs), inputs.first
    entries = {}
    for contestant in every:
        error, because = checker.verdict(contestant, call)
        entry: dict[str, Any] = {"name": contestant.name, "because": because}
        if contestant.row:
            entry |= {"symbol": contestant.row.symbol, "backend": contestant.backend}
            entry |= {"partition_size": contestant.row.partition_size}
        if not because:
            entry |= {"error": round(error, 4), "checked_seqs": len(checker.checked)}
            entry |= {"launches": launches(contestant, call)}
            entry |= {"workspace_bytes": workspace_bytes(contestant, call, device)}
        entries[contestant.name] = entry
        step()
    return entries


def figures(times: Times, problem: Problem, bandwidth: float) -> Mapping[str, Any]:
    """Return the fields that ``times`` adds to the entry of a contestant (a kernel or a baseline) in the JSON document.

    These are the times, the bandwidth that the contestant reaches, and this bandwidth divided by that of a memory copy.

    times: the times of the contestant.
    bandwidth: the bandwidth, in GB/s, of a memory copy that was timed in the same rounds.
    """
    gbps = problem.io_bytes / times.median / 1e6
    return {
        "median_ms": round(times.median, 6),
        "spread": round(times.spread, 4),
        "samples_ms": [round(sample, 6) for sample in times.samples],
        "gbps": round(gbps, 3),
        "share_of_copy": round(gbps / bandwidth, 4),
    }


def chosen_kernel(package: ModuleType, problem: Problem, backend: str, device: torch.device) -> str:
    """Return the symbol (unique name) of the kernel of ``backend`` that the dispatch table chooses for ``problem``."""
    row: Row = package.operator.table.choose(
        *(problem.key, backend, problem.num_seqs, problem.seq_len, problem.kv_heads),
        device=device_name(device),
    )
    return row.symbol


def wrong(document: Mapping[str, Any]) -> Iterable[str]:
    """Yield an error message for each generated kernel in ``document`` that failed or gave wrong results."""
    for point in document["points"]:
        for entry in point["contestants"]:
            if entry["because"] and "symbol" in entry:
                at = f"S={point['num_seqs']} L={point['seq_len']}"
                if "query_len" in point:
                    at = f"Q={point['query_len']} {at}"
                yield f"{entry['symbol']} ({entry['backend']}), {at}: {entry['because']}"
