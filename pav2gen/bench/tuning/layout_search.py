"""Implements ``pav2gen tune --layouts``: finds the fastest layout of the CUDA kernels on a GPU.

A layout says how a thread block divides its work. The candidates are the layouts that the plans of the kernels rank
first. For each candidate, the kernels are rendered as those of a separate spec. So the kernels of all layouts have
different symbols, and fit into one library. All layouts of a kernel are timed in turn, on the same inputs. The command
prints the line to write into the spec to select the fastest layout.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from pav2gen.bench.measuring import machine
from pav2gen.bench.measuring.clock import Run, interleave
from pav2gen.bench.measuring.contestants import Checker, Contestant
from pav2gen.bench.measuring.package import measured
from pav2gen.bench.measuring.problem import Problem, make, rotation
from pav2gen.errors import UserError
from pav2gen.plan.cuda_plan import layouts
from pav2gen.plan.kernel import Kernel, plan
from pav2gen.reading.selection import Selection
from pav2gen.runtime import library, op
from pav2gen.runtime.call import Call
from pav2gen.runtime.choice.dispatch_row import Row

#: At most this many layouts of a kernel become candidates: those that its plan ranks first.
BEST_OF_A_KERNEL = 6


class Layout(NamedTuple):
    """A layout of CUDA kernels: the values of a spec's section ``cuda``, which docs/cuda.md explains."""

    threads: int
    step: int
    tokens: int

    def __str__(self) -> str:
        return f"threads: {self.threads}, step: {self.step}, tokens: {self.tokens}"


@dataclass(frozen=True)
class LayoutOptions:
    """The options of ``pav2gen tune --layouts``.

    num_seqs, seq_lens: the numbers of sequences in a batch, and of tokens in a sequence, to time.
    rounds, warmups, progress: as in ``bench.BenchOptions``.
    most: the largest number of layouts to compare.
    """

    device: torch.device
    num_seqs: tuple[int, ...]
    seq_lens: tuple[int, ...]
    rounds: int = 7
    warmups: int = 2
    most: int = 8
    progress: Callable[[str, int], Callable[[], object]] = lambda what, total: lambda: None


@dataclass(frozen=True)
class LayoutTimes:
    """The times of one kernel in several layouts, for one problem.

    slug: the short name of the kernel.
    ms: the median time of each layout with right results, in ms.
    wrong: for each layout with wrong results, what is wrong.
    """

    slug: str
    problem: Problem
    ms: Mapping[Layout, float]
    wrong: Mapping[Layout, str]


def search(chosen: Selection, options: LayoutOptions) -> list[LayoutTimes]:
    """Time the CUDA kernels of ``chosen`` in several layouts. Returns the times for each kernel and each problem.

    The device is a GPU. Only tests use a CPU, with the CUDA kernels compiled by g++. Raises UserError if the spec has
    no CUDA kernels.
    """
    if "cuda" not in chosen.spec.backends:
        raise UserError(f"{chosen.spec.name} has no CUDA kernels: its backends are {', '.join(chosen.spec.backends)}")
    found = candidates(chosen, options.most)
    variants = [with_layout(chosen, layout, number) for number, layout in enumerate(found)]
    layout_of = {each.spec.name: layout for each, layout in zip(variants, found)}
    rows: dict[str, list[Row]] = defaultdict(list)
    sources: dict[str, Path] = {}
    for package in (measured(each)[0] for each in variants if each.built):
        sources.update(library.kernels_of(package.kernels.rows, package.kernels.root))
        for row in package.kernels.rows:
            rows[row.symbol.removeprefix(f"pav2_{row.spec}_")].append(row)
    with machine.current(options.device):
        built = library.build(sources, None if options.device.type == "cuda" else "host")
        compiled = library.Library(built, sources)
        return [
            _time(compiled, slug, each, problem, layout_of, options)
            for slug, each in rows.items()
            for problem in _problems(chosen, each[0], options)
        ]


def candidates(chosen: Selection, most: int) -> list[Layout]:
    """Return at most ``most`` layouts for the kernels of ``chosen``, the most promising first.

    The plan of each kernel gives 1 point to the layout that it ranks first, 1/2 to the second, 1/3 to the third, and so
    on. The layout with the most points comes first.
    """
    scores: dict[Layout, float] = defaultdict(float)
    for v, p in chosen.kernels:
        ranked = layouts(v, chosen.spec.target, p.cuda.geometry.heads, {})
        distinct = dict.fromkeys(
            Layout(each.geometry.threads, each.geometry.step, each.geometry.runs) for each in ranked
        )
        for rank, layout in enumerate(list(distinct)[:BEST_OF_A_KERNEL]):
            scores[layout] += 1 / (1 + rank)
    return sorted(scores, key=lambda layout: (-scores[layout], layout))[:most]


def with_layout(chosen: Selection, layout: Layout, number: int) -> Selection:
    """Return the CUDA decode kernels of ``chosen`` with the layout ``layout``, as the kernels of a separate spec.

    A kernel is left out if it cannot have this layout. A kernel is also left out if the layout gives the query heads of
    a KV head another number of thread blocks than the plan's own layout does.

    number: the number of the layout, which makes the names of the spec and of its kernels unique.
    """
    name = f"{chosen.spec.name}_layout{number}"
    spec = replace(chosen.spec, name=name, cuda=layout._asdict(), backends=("cuda",))
    built = []
    for v, p in chosen.kernels:
        variant = replace(v, spec=name)
        try:
            kernel = Kernel(variant, plan(variant, spec))
            if kernel.p.cuda.blocks_per_group == p.cuda.blocks_per_group:
                built.append(kernel)
        except ValueError:  # the step is shorter than a page
            continue
    return Selection(spec, chosen.path, tuple(built), chosen.filters)


def ranking(found: Sequence[LayoutTimes]) -> list[tuple[Layout, float]]:
    """Return the layouts that gave right results in every problem, the fastest first, with a figure for each layout.

    A layout that some kernel cannot have is left out. In each problem, the layout's time is divided by the time of the
    fastest layout. The figure is the geometric mean of these ratios.
    """
    logs: dict[Layout, list[float]] = defaultdict(list)
    for each in found:
        best = min(each.ms.values(), default=0.0)
        for layout, time in each.ms.items():
            logs[layout].append(math.log(time / best))
    whole = {layout: values for layout, values in logs.items() if len(values) == len(found)}
    means = {layout: math.exp(sum(values) / len(values)) for layout, values in whole.items()}
    return sorted(means.items(), key=lambda item: item[1])


def _problems(chosen: Selection, row: Row, options: LayoutOptions) -> list[Problem]:
    """Return the problems for the kernel of ``row``: one for each batch size and sequence length of ``options``.

    The numbers of heads are those of the first tensor-parallel rank that the kernel serves.
    """
    ranks = [rank for rank in chosen.spec.model.ranks() if rank.gqa_ratio == row.key.gqa_ratio]
    return [
        Problem(row.key, ranks[0].num_kv_heads, num_seqs, seq_len, row.modification)
        for num_seqs in options.num_seqs
        for seq_len in options.seq_lens
    ]


def _time(
    compiled: library.Library,
    slug: str,
    rows: Sequence[Row],
    problem: Problem,
    layout_of: Mapping[str, Layout],
    options: LayoutOptions,
) -> LayoutTimes:
    """Check every layout of a kernel against float64 for one problem, and time the layouts with right results.

    slug: the short name of the kernel.
    rows: the dispatch rows of the kernel, one for each layout.
    layout_of: a dict from the name of a layout's spec to the layout.
    """
    inputs = make(problem, options.device, machine.cache_bytes(options.device))
    checker = Checker(problem, inputs)
    step = options.progress(f"{slug} {problem.label}", len(rows) * (1 + options.rounds + options.warmups))
    right: dict[str, Run] = {}
    wrong: dict[Layout, str] = {}
    for row in rows:
        run = _launcher(compiled, row)
        _, because = checker.verdict(Contestant(slug, run, run, "cuda", row), inputs.first)
        if because:
            wrong[layout_of[row.spec]] = because
        else:
            right[row.spec] = run
        step()
    with torch.no_grad():
        taken = interleave(right, rotation(inputs), options.device, options.rounds, options.warmups, step)
    return LayoutTimes(slug, problem, {layout_of[spec]: times.median for spec, times in taken.items()}, wrong)


def _launcher(compiled: library.Library, row: Row) -> Run:
    """Return a function that runs the kernel of ``row`` in the library ``compiled`` directly, without the dispatch
    table.
    """

    def run(call: Call) -> None:
        op.launch(functools.partial(compiled.launch, row), call, row.partition_size)

    return run


def lines(found: Sequence[LayoutTimes], path: Path) -> list[str]:
    """Return the lines that the command prints: the times, the ranking, and the line to write into the spec.

    path: the path of the spec.
    """
    told = []
    for each in found:
        told.append(f"{each.slug} {each.problem.label}")
        for layout, time in sorted(each.ms.items(), key=lambda item: item[1]):
            told.append(f"  {time:10.4f} ms  {layout}")
        told += [f"  {because}: {layout}" for layout, because in each.wrong.items()]
    ranked = ranking(found)
    if not ranked:
        return [*told, "no layout gave right results in all problems"]
    told += ["time divided by that of the fastest layout, geometric mean over all problems"]
    told += [f"  {mean:6.3f}  {layout}" for layout, mean in ranked]
    return [
        *told,
        f"to use the first layout, write   cuda: {{{ranked[0][0]}}}   into {path}, then: pav2gen build {path}",
    ]
