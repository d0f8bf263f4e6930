"""Implements ``pav2gen report``: makes a self-contained HTML page, without scripts, about the plans and times of
kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pav2gen.bench.measuring import measurement_file as document
from pav2gen.bench.registers.compiled_figures import figures, notes
from pav2gen.bench.registers.ptxas import Measured
from pav2gen.bench.reporting import line_chart as charts
from pav2gen.bench.reporting.bar_chart import BarGroup, Bars, bars
from pav2gen.bench.reporting.line_chart import Chart, Heading, Series
from pav2gen.bench.reporting.measurement_rows import Measurement, measurements
from pav2gen.bench.reporting.model_summary import short_title, summary_table
from pav2gen.errors import UserError
from pav2gen.family.spec import RankShape, Spec
from pav2gen.plan.kernel import Extender, Kernel, Plan
from pav2gen.plan.prediction import Predictor, predictable
from pav2gen.reading.selection import Selection
from pav2gen.render.kernels import GENERATOR, render_spec
from pav2gen.render.templates import Templates
from pav2gen.runtime.choice.key import Key

TEMPLATE = "report/report.html.j2"

#: The numbers of sequences in a batch for which times are predicted.
PREDICTED_BATCHES = (1, 16)

#: The baselines that charts show, in the order of drawing: their labels, by name. A name is also a CSS class.
PEERS = {"seed": "plain algorithm", "sdpa": "gather + SDPA", "vllm": "vLLM's operator"}
KERNELS = {"torch": "pav2gen, PyTorch", "cuda": "pav2gen, CUDA"}


def report(chosen: Selection, files: Sequence[Path], measured: Mapping[str, Measured] | None = None) -> str:
    """Return the HTML page about the kernels of ``chosen``.

    files: the JSON documents of ``pav2gen bench`` whose times the page shows.
    measured: what ptxas printed about the CUDA kernels of each spec, by the spec's name. The figures of ptxas replace
    the estimates of the plans. None if ptxas was not run.

    Raises UserError for a file that is not a document of ``pav2gen bench``, or that belongs to another spec.
    """
    documents = [document.read(path) for path in files]
    for path, each in zip(files, documents):
        if each["spec"].get("name") != chosen.spec.name:
            raise UserError(
                f"has figures of the spec {each['spec'].get('name')}, but the report is about {chosen.spec.name}",
                str(path),
            )
    found = measurements(documents)
    templates = Templates()
    plans = plans_by_key(chosen.kernels)
    extenders = tuple(each for each in chosen.built if isinstance(each, Extender))
    return templates.render(
        TEMPLATE,
        generator=GENERATOR,
        spec=chosen.spec,
        figures={kernel.v.symbol: figures(kernel, (measured or {}).get(chosen.spec.name)) for kernel in chosen.built},
        compiled=notes([chosen], measured or {}),
        families=plans,
        summary_table=summary_table(chosen.spec, plans),
        tuned=any(tuning.rows for tuning in chosen.tuned),
        kernels=chosen.kernels,
        extenders=extenders,
        sources=render_spec(chosen.spec, [*chosen.kernels, *extenders], templates),
        documents=documents,
        found=found,
        outdated=[each for each in documents if each["spec"].get("sha256") != chosen.spec.sha256],
        times=list(time_charts(found)),
        workspaces=list(workspace_charts(found, chosen.spec.limits.workspace_mib << 20)),
        shares=shares(found),
        bytes_read=bytes_read(chosen.spec, plans),
        predictions=list(prediction_charts(chosen, plans)),
        best=highlights(found),
        memory=charts.memory,
    )


def plans_by_key(kernels: Iterable[Kernel]) -> dict[Key, list[Plan]]:
    """Return a dict from each configuration (``Key``) to the plans of its kernels, sorted by partition size."""
    found: dict[Key, list[Plan]] = {}
    for variant, plan in kernels:
        found.setdefault(variant.key, []).append(plan)
    return {key: sorted(plans, key=lambda plan: plan.variant.partition_size) for key, plans in found.items()}


def time_charts(found: Sequence[Measurement]) -> Iterator[Chart]:
    """Yield the charts of measured times over the sequence length.

    There is a chart for each configuration, number of heads, batch and device, if several sequence lengths were
    measured. Each chart also shows the floor (the least possible time).
    """
    for number, (heading, points) in enumerate(grouped(found).items()):
        if len(points) > 1:
            series = [*contestants(points, lambda entry: entry.get("median_ms")), floor(points)]
            yield charts.chart(f"time-{number}", heading, series, charts.TIME)


def workspace_charts(found: Sequence[Measurement], limit: int) -> Iterator[Chart]:
    """Yield the charts of the measured workspace over the sequence length: one for each batch and device.

    A chart has a line for each baseline and each backend. If several configurations were measured, the line shows the
    largest workspace among them.

    limit: the largest workspace that the spec allows, in bytes. Each chart shows it as a line.
    """
    batches: dict[Heading, list[Measurement]] = {}
    for each in found:
        batches.setdefault(Heading(each.batch, each.device), []).append(each)
    for number, (heading, points) in enumerate(batches.items()):
        lengths = sorted({point.seq_len for point in points})
        if len(lengths) > 1:
            bound = Series("bound of the spec", "bound", tuple((float(length), float(limit)) for length in lengths))
            series = [*contestants(points, lambda entry: entry.get("workspace_bytes")), bound]
            yield charts.chart(f"workspace-{number}", heading, series, charts.WORKSPACE)


def contestants(points: Sequence[Measurement], figure: Any) -> Iterator[Series]:
    """Yield the lines of a chart of measurements: one for each baseline and each backend.

    For a backend, the line shows the kernels that the dispatch table chose. If several measurements have the same
    sequence length, the line shows the largest value.

    figure: a function that returns the value to show, such as the median time. The argument of ``figure`` is what the
    JSON document says about a kernel or baseline in one problem. ``figure`` returns None if the value was not measured.
    """
    for name, label in {**PEERS, **KERNELS}.items():
        values: dict[int, float] = {}
        for point in points:
            entry = point.chosen(name) if name in KERNELS else point.entry(name)
            value = figure(entry) if entry else None
            if value:
                values[point.seq_len] = max(value, values.get(point.seq_len, 0.0))
        if values:
            yield Series(label, name, tuple((float(length), values[length]) for length in sorted(values)))


def floor(points: Sequence[Measurement]) -> Series:
    """Return the line of the floor: the time to move the bytes of the input and output once, at the bandwidth of a
    copy.
    """
    ordered = sorted(points, key=lambda point: point.seq_len)
    return Series("floor: bytes, once", "floor", tuple((float(p.seq_len), p.floor_ms) for p in ordered), area=True)


def grouped(found: Iterable[Measurement]) -> dict[Heading, list[Measurement]]:
    """Return a dict from the heading of each chart of times to the measurements that the chart shows."""
    groups: dict[Heading, list[Measurement]] = {}
    for each in found:
        groups.setdefault(Heading(each.title, f"{each.batch}, {each.device}"), []).append(each)
    return groups


def shares(found: Sequence[Measurement]) -> Bars | None:
    """Return the bar chart of the floor (the least possible time) divided by the measured times.

    For each chart of times (see ``grouped``), the bar chart shows only the measurement with the longest sequences.
    Returns None if nothing was timed.
    """
    groups = []
    for points in grouped(found).values():
        longest = max(points, key=lambda point: point.seq_len)
        reached = tuple(
            (series.label, series.style, longest.floor_ms / series.points[-1][1])
            for series in contestants([longest], lambda entry: entry.get("median_ms"))
        )
        if reached:
            groups.append(BarGroup(longest.where, reached[::-1]))
    most = max((value for group in groups for _, _, value in group.bars), default=0.0)
    note = "floor divided by median; at the greatest length measured"
    return bars("share-bars", "Share of the floor", note, groups, charts.percent, max(1.0, most)) if groups else None


def bytes_read(spec: Spec, plans: Mapping[Key, Sequence[Plan]]) -> Bars | None:
    """Return the bar chart of how many bytes a decode call loads from the KV cache, as the plans predict.

    The call has one sequence of the model's full length (``max_seq_len``). For each configuration, the chart compares
    the CUDA kernel with an imaginary kernel that has one thread block for each query head. Returns None if the spec
    builds no CUDA kernels.
    """
    if "cuda" not in spec.backends:
        return None
    groups = []
    for every in plans.values():
        held = every[-1]
        once = held.kv_bytes_per_token * spec.model.max_seq_len
        ours, plain = once * held.cuda.blocks_per_group, once * held.variant.gqa_ratio
        compared = (("pav2gen", "ours", float(ours)), ("one block for each query head", "plain", float(plain)))
        groups.append(BarGroup(short_title(held), compared))
    note = f"K and V of one sequence of {spec.model.max_seq_len} tokens, one layer, one rank; by the plans"
    most = max(value for group in groups for _, _, value in group.bars)
    return bars("bytes-bars", "Bytes of the KV cache that a decode requests", note, groups, charts.memory, most)


def prediction_charts(chosen: Selection, plans: Mapping[Key, Sequence[Plan]]) -> Iterator[Chart]:
    """Yield the charts of predicted times over the sequence length, for the spec's target.

    Each batch size has two charts, with a line for each tensor-parallel rank. The second chart is for replays of a CUDA
    graph that was captured for the model's full length (``max_seq_len``).
    """
    if not predictable(chosen.spec.target) or "cuda" not in chosen.spec.backends:
        return
    leads: dict[int, Sequence[Plan]] = {}
    for key, every in plans.items():
        leads.setdefault(key.gqa_ratio, every)
    predictors = [
        Predictor(leads[rank.gqa_ratio], rank, chosen.spec.target)
        for rank in chosen.spec.model.ranks() if rank.gqa_ratio in leads
    ]  # fmt: skip
    about, longest = chosen.spec.target.about, chosen.spec.model.max_seq_len
    for num_seqs in PREDICTED_BATCHES:
        for name, captured in (("prediction", None), ("replay", longest)):
            series = list(_predicted(predictors, num_seqs, captured))
            note = f"{about}; query/KV heads of each rank; dotted: its floor"
            title = batch(num_seqs) + (f", in a CUDA graph for {charts.tokens(captured)} tokens" if captured else "")
            if series:
                heading = Heading(title, note)
                yield charts.chart(f"{name}-{num_seqs}", heading, series, charts.PREDICTED_TIME, prediction=True)


def _predicted(predictors: Sequence[Predictor], num_seqs: int, captured: int | None) -> Iterator[Series]:
    """Yield the lines of a chart of predictions: the predicted time and the floor (least possible time) for each rank.

    Ranks with equal times share a line.

    num_seqs: the number of sequences in the batch.
    captured: the sequence length that the replayed CUDA graph was captured for, or None without a graph.
    """
    ranks: dict[tuple[tuple[float, float], ...], list[Predictor]] = {}
    for each in predictors:
        longest = each.plans[0].spec.model.max_seq_len
        lengths = [length for length in (1 << n for n in range(10, 31)) if length <= longest] or [longest]
        points = tuple((float(length), each.ms(num_seqs, length, captured)) for length in lengths)
        ranks.setdefault(points, []).append(each)
    for number, (points, alike) in enumerate(ranks.items()):
        floors = tuple((length, alike[0].floor_ms(num_seqs, round(length))) for length, _ in points)
        yield Series("floor", f"rank{number % 6} thin", floors, bare=True)
        yield Series(", ".join(rank_label(each.rank) for each in alike), f"rank{number % 6}", points)


def rank_label(rank: RankShape) -> str:
    """Return the label of a rank's line, such as ``TP 2: 12/2``: the tensor-parallel size, query heads and KV heads."""
    return f"TP {rank.tensor_parallel}: {rank.num_heads}/{rank.num_kv_heads}"


def batch(num_seqs: int) -> str:
    """Return a number of sequences in words, such as ``8 sequences``."""
    return "1 sequence" if num_seqs == 1 else f"{num_seqs} sequences"


def highlights(found: Sequence[Measurement]) -> list[tuple[str, str]]:
    """Return the figures at the top of the page: the greatest speedup over each baseline, and where it was measured.

    Each figure is a pair of texts: the speedup, and the kernel, the problem and the device.
    """
    best = {}
    for peer, label in PEERS.items():
        ratios = [(ratio, point, name) for point in found for name in KERNELS if (ratio := point.ratio(name, peer))]
        if ratios:
            ratio, point, name = max(ratios, key=lambda each: each[0])
            where = f"{KERNELS[name]}; {point.where}, on {point.device}"
            best[f"{ratio:.3g} times as fast as {'the ' * (peer == 'seed')}{label}"] = where
    return list(best.items())
