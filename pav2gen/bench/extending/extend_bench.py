"""Implements ``pav2gen bench --operator extend``: checks extend kernels and baselines, and times them beside decode
kernels.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pav2gen.bench.measuring import bench, contestants, extend, machine
from pav2gen.bench.measuring.baselines import TOLERANCE, NotApplicable, baseline
from pav2gen.bench.measuring.clock import interleave
from pav2gen.bench.measuring.float64_reference import sequences, truth
from pav2gen.bench.measuring.problem import Inputs, Problem
from pav2gen.errors import UserError
from pav2gen.reading.selection import Selection
from pav2gen.runtime.call import Call
from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.extend import op as extend_op
from pav2gen.runtime.extend.call import ExtendCall
from pav2gen.runtime.extend.launch import launch as launch_cuda
from pav2gen.runtime.lengths import may_read
from pav2gen.runtime.testing import probe
from pav2gen.runtime.testing.oracle import excess

KIND, SCHEMA = "pav2gen bench extend", 1


@dataclass(frozen=True)
class ExtendOptions(bench.BenchOptions):
    """The options of ``pav2gen bench`` for extend kernels.

    query_lens: the numbers of new tokens per sequence to measure. The sequence lengths ``seq_lens`` include them.
    """

    query_lens: tuple[int, ...] = ()


class ExtendProblem(NamedTuple):
    """An extend call to measure: a batch in which each sequence has ``query_len`` new tokens.

    decode: the same batch as a problem for decode kernels. A problem has the kernel configuration, and the numbers of
    heads, sequences and tokens.
    """

    decode: Problem
    query_len: int

    @property
    def label(self) -> str:
        """A short description of the problem, for a progress bar."""
        return f"Q={self.query_len} {self.decode.label}"

    def __str__(self) -> str:
        return f"Q={self.query_len} {self.decode}"


class Pair(NamedTuple):
    """A decode call and an extend call that read the same KV cache."""

    decode: Call
    extend: ExtendCall


class Contestant(NamedTuple):
    """An extend kernel, a baseline, or a decode kernel that is timed for comparison.

    run: a function that makes the whole call, including the checks of its arguments.
    bare: a function that runs only the extend kernel, so that the ATen calls and the memory of the kernel can be
    counted. For a baseline or a decode kernel, the same function as ``run``.
    row: the dispatch row of an extend kernel. None for a baseline or a decode kernel.
    backend: the backend of an extend kernel. Empty for a baseline or a decode kernel.
    """

    name: str
    run: Callable[[Pair], object]
    bare: Callable[[Pair], object]
    row: Row | None = None
    backend: str = ""


def measure_all(chosen: Selection, options: ExtendOptions) -> dict[str, Any]:
    """Measure the extend kernels of ``chosen``, and return the JSON document that docs/bench.md describes.

    If Ctrl-C ends the measurement early, the document has the results so far. Raises UserError if the spec builds no
    extend kernels, or if there is no problem to measure.
    """
    if "extend" not in chosen.spec.operators:
        wanted = ", ".join((*chosen.spec.operators, "extend"))
        raise UserError(f"builds no extend kernel; change its line to: operators: [{wanted}]", str(chosen.path))
    with machine.current(options.device):
        setup = bench.Setup(chosen, options.device)
        rows = [row for row in setup.package.kernels.rows if row.operator == "extend"]
        every, notes = problems(setup, rows, options)
        document = bench.empty(setup, options, notes) | {"kind": KIND, "schema": SCHEMA}
        started = time.monotonic()
        try:
            for number, problem in enumerate(every):
                if number and options.seconds and time.monotonic() - started > options.seconds:
                    bench.note_rest(document, every, f"out of time after {options.seconds:g} s")
                    break
                own = [row for row in rows if row.key == problem.decode.key]
                document["points"].append(measure(setup, own, problem, options))
                document["date"] = bench.now()
                share = (len(every) - number - 1) / (number + 1)
                options.kept(document, share * (time.monotonic() - started))
        except KeyboardInterrupt:
            bench.note_rest(document, every, bench.INTERRUPTED)
    return document


def problems(setup: bench.Setup, rows: list[Row], options: ExtendOptions) -> tuple[list[ExtendProblem], list[str]]:
    """Return the problems to measure, and a note on each problem that is left out.

    rows: the dispatch rows of all extend kernels.

    Raises UserError if there is no problem to measure.
    """
    found, notes = [], []
    for key in dict.fromkeys(row.key for row in rows):
        modification = next(row.modification for row in rows if row.key == key)
        for rank in bench.ranks(setup.spec, key, options.tensor_parallel)[:1]:
            sizes = itertools.product(options.num_seqs, options.seq_lens, options.query_lens)
            for num_seqs, seq_len, query_len in sizes:
                decode = Problem(key, rank.num_kv_heads, num_seqs, seq_len, modification)
                problem = ExtendProblem(decode, query_len)
                if query_len > seq_len:
                    notes.append(f"left out, because --query-lens is greater than --seq-len: {problem}")
                elif decode.kv_bytes > options.max_gib * bench.GIB:
                    notes.append(
                        f"left out, because the KV cache is larger than --max-gib {options.max_gib:g}: {problem}"
                    )
                else:
                    found.append(problem)
    if not found:
        raise UserError(
            "no problem is left to measure; check --filter, --query-lens, --seq-len, --tensor-parallel and --max-gib"
        )
    return found, notes


def measure(setup: bench.Setup, rows: list[Row], problem: ExtendProblem, options: ExtendOptions) -> dict[str, Any]:
    """Measure one problem, and return the results as an entry for ``points`` of the JSON document.

    First, check the results of every extend kernel and baseline, and find how many launches and how much memory its
    call needs. Then time the kernels and baselines with right results, and the decode kernels, in the same rounds.

    rows: the dispatch rows of the extend kernels with the configuration of ``problem``.
    """
    decode, inputs = problem.decode, setup.inputs(problem.decode)
    query = queries(problem)
    first = pair(inputs.first, query.to(setup.device), problem)
    peers, absent = baselines(problem, options.against)
    every = [*kernels(setup, rows), *peers]
    decodes = decoders(setup, decode)
    step = options.progress(
        problem.label, len(every) + (len(every) + len(decodes)) * (options.rounds + options.warmups)
    )
    with torch.no_grad():
        check = checker(problem, inputs, query)
        entries = {each.name: entry(each, first, check, setup.device, step) for each in every}
        racing = {each.name: each.run for each in every if not entries[each.name]["because"]}
        racing |= {each.name: each.run for each in decodes}
        slow = [each.name for each in peers]
        rounds = options.rounds, options.warmups
        times = interleave(racing, rotation(inputs, first, problem), setup.device, *rounds, step, slow)
    for each in decodes:
        entries[each.name] = {"name": each.name, "because": ""}
    for name, taken in times.items():
        entries[name] |= {"median_ms": taken.median, "spread": round(taken.spread, 4)}
        entries[name] |= {"samples_ms": list(taken.samples)}
    for name in times:
        others = (*(peer.name for peer in peers), *(each.name for each in decodes))
        entries[name]["ratios"] = {
            other: times[name].median / times[other].median for other in others if other in times and other != name
        }
    return {
        "key": decode.key._asdict(),
        "num_heads": decode.num_heads,
        "kv_heads": decode.kv_heads,
        "num_seqs": decode.num_seqs,
        "seq_len": decode.seq_len,
        "query_len": problem.query_len,
        "contestants": [*entries.values(), *({"name": name, "because": why} for name, why in absent.items())],
    }


def kernels(setup: bench.Setup, rows: list[Row]) -> list[Contestant]:
    """Return a contestant for each extend kernel. A row of ``rows`` may have an extend kernel for each backend.

    Kernels of a backend that cannot be timed on the device of ``setup`` are left out.
    """
    return [_kernel(setup, row, backend) for backend in setup.backends for row in rows if getattr(row, backend)]


def _kernel(setup: bench.Setup, row: Row, backend: str) -> Contestant:
    memory = importlib.import_module(f"{setup.package.__name__}.runtime.attention.workspace")

    def run(given: Pair) -> None:
        extend.operate(setup.package, given.extend, row, backend)

    def bare(given: Pair) -> None:
        memory.forget()
        device = given.extend.query.device
        call = given.extend._replace(read_lengths=may_read(device, row.host_lengths))
        extend_op.launch(setup.package.extender.kernel(row, backend, device.type == "cuda"), call)
        memory.forget()

    return Contestant(backend, run, bare, row, backend)


def decoders(setup: bench.Setup, problem: Problem) -> list[Contestant]:
    """Return a contestant for each backend: the decode kernel that the dispatch table chooses for ``problem``.

    A backend is left out if the spec builds no decode kernel for it.
    """
    found = []
    for backend in setup.backends:
        rows = [row for row in setup.keys.get(problem.key, []) if getattr(row, backend)]
        if rows:
            symbol = bench.chosen_kernel(setup.package, problem, backend, setup.device)
            row = next(row for row in rows if row.symbol == symbol)
            (own,) = contestants.kernels(setup.package, [row], [backend])
            run = _on_decode(own.run)
            found.append(Contestant(f"{backend} decode", run, run))
    return found


def _on_decode(run: Callable[[Call], object]) -> Callable[[Pair], object]:
    return lambda given: run(given.decode)


def baselines(problem: ExtendProblem, names: tuple[str, ...]) -> tuple[list[Contestant], Mapping[str, str]]:
    """Return the baselines to measure, and a dict from the name of each other baseline to why it is not measured.

    "sdpa" is torch's attention with an explicit mask. "sdpa causal" is torch's causal attention without a mask tensor.
    "sdpa causal" is measured only if all tokens of the sequences are new. Without "sdpa" in ``names``, there are no
    baselines.
    """
    if "sdpa" not in names:
        return [], {}
    try:
        baseline("sdpa", problem.decode.key)
    except NotApplicable as reason:
        return [], {"sdpa": str(reason)}
    runs = {"sdpa": extend.sdpa}
    if problem.query_len == problem.decode.seq_len:
        runs["sdpa causal"] = extend.sdpa_causal
    return [_peer(name, run) for name, run in runs.items()], {}


def _peer(name: str, attention: Callable[[ExtendCall], None]) -> Contestant:
    def run(given: Pair) -> None:
        attention(given.extend)

    return Contestant(name, run, run)


def queries(problem: ExtendProblem) -> torch.Tensor:
    """Return a random query for each new token of the batch: a CPU tensor [new tokens, query heads, head size] in
    the model's dtype.
    """
    decode = problem.decode
    shape = (decode.num_seqs * problem.query_len, decode.num_heads, decode.key.head_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(getattr(torch, decode.key.dtype))


def pair(call: Call, query: torch.Tensor, problem: ExtendProblem) -> Pair:
    """Return the decode call ``call`` together with an extend call that reads the same KV cache.

    query: the queries of all new tokens, on the device of ``call``.
    """
    shared = {name: value for name, value in call._asdict().items() if name in ExtendCall._fields}
    starts = torch.arange(problem.decode.num_seqs + 1, dtype=torch.int32) * problem.query_len
    own = {"out": torch.empty_like(query), "query": query, "query_start_loc": starts.to(query.device)}
    return Pair(call, ExtendCall(**{**shared, **own}, max_query_len=problem.query_len))


def rotation(inputs: Inputs, first: Pair, problem: ExtendProblem) -> Iterator[Pair]:
    """Yield a ``Pair`` for each call of ``inputs``, one after the other, endlessly.

    first: the pair for the first call. Every extend call is equal to the one in ``first``, except for the block tables,
    which are those of the decode call.
    """
    for number in itertools.cycle(range(inputs.count)):
        call = inputs.call(number)
        yield Pair(call, first.extend._replace(block_tables=call.block_tables))


def checker(problem: ExtendProblem, inputs: Inputs, query: torch.Tensor) -> Callable[[Contestant, Pair], float]:
    """Return a function that runs an extend kernel or baseline once, and returns its error divided by the allowed
    error.

    The function compares the outputs of some new tokens with a float64 reference. The function returns infinity if any
    output is NaN.

    query: the queries of all new tokens, on the CPU.
    """
    decode, new = problem.decode, problem.query_len
    chosen = [(s, i) for s in sequences(decode.num_seqs) for i in sequences(new)]
    rows = [s * new + i for s, i in chosen]
    lengths = torch.tensor([decode.seq_len - new + i + 1 for _, i in chosen], dtype=torch.int32)
    small = inputs.small._replace(
        query=query[rows], block_tables=inputs.small.block_tables[[s for s, _ in chosen]], seq_lens=lengths
    )
    every = list(range(len(rows)))
    right = truth(small, decode.key.kv_cache_dtype, every, decode.modification, decode.seq_len)

    def error(contestant: Contestant, given: Pair) -> float:
        given.extend.out.fill_(float("nan"))
        contestant.run(given)
        if given.extend.out.isnan().any():
            return float("inf")
        out = given.extend.out[rows].cpu()
        if contestant.row:
            return excess(out, right)
        return float((out.double() - right).norm() / right.norm()) / TOLERANCE[decode.key.dtype]

    return error


def entry(
    contestant: Contestant,
    given: Pair,
    check: Callable[[Contestant, Pair], float],
    device: torch.device,
    step: Callable[[], object],
) -> dict[str, Any]:
    """Check one extend kernel or baseline, and return its entry in the JSON document. The times are added to it later.

    If the results are right, the entry has the error divided by the allowed error, the number of launches, and the
    workspace in bytes. Otherwise, the field ``because`` has the reason why the kernel or baseline is not timed.

    check: the function that ``checker`` returns.
    step: a function to call after the check, to advance the progress bar.
    """
    found: dict[str, Any] = {"name": contestant.name, "because": ""}
    if contestant.row:
        found |= {"symbol": contestant.row.symbol, "backend": contestant.backend}
    try:
        error = check(contestant, given)
    except Exception as reason:  # any failure excludes this contestant alone
        lines = str(reason).strip().splitlines()
        return found | {"because": f"failed: {lines[0] if lines else type(reason).__name__}"}
    finally:
        step()
    if not error <= 1:
        return found | {"because": f"wrong: its error is {error:.3g} times the allowed error"}
    found |= {"error": round(error, 4), "launches": launches(contestant, given)}
    return found | {"workspace_bytes": machine.peak_bytes(lambda: contestant.bare(given), device)}


def launches(contestant: Contestant, given: Pair) -> int:
    """Return how many launches an extend call makes: its ATen calls that are not views, plus its launches of CUDA
    kernels.
    """
    counted = sum(probe.count_calls(lambda: contestant.bare(given)).values())
    row = contestant.row if contestant.backend == "cuda" else None
    return counted + (cuda_launches(row, given.extend) if row else 0)


def cuda_launches(row: Row, call: ExtendCall) -> int:
    """Return how many launches a call of the CUDA extend kernel of ``row`` makes. Nothing is launched to count them."""
    return contestants.count_launches(lambda entry: launch_cuda(entry, call, row, str, contestants.no_workspace))
