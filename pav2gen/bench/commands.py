"""Defines the commands ``bench``, ``tune`` and ``report``: their arguments, and how their results are printed.

``pav2gen.cli`` adds these commands to the command line.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pav2gen.bench.parameter_types import Gibibytes, Numbers
from pav2gen.bench.registers.options import asked_ptxas, ptxas_options
from pav2gen.errors import UserError
from pav2gen.files import check_output, check_replaceable

if TYPE_CHECKING:
    from pav2gen.reading.selection import Selection

#: The default values of the options of ``bench`` and ``tune``. Constants with LENGTHS in the name are for
#: ``--seq-len``, the numbers of tokens in a sequence. Those with BATCHES are for ``--num-seqs``, the numbers of
#: sequences in a batch. BENCH_QUERIES is for ``--query-lens``, the numbers of new tokens in a sequence.
BENCH_LENGTHS, BENCH_BATCHES = (1024, 8192, 32768, 100_000), (1, 8)
BENCH_QUERIES = (4, 8, 512)
TUNE_BATCHES = (1, 2, 4, 8, 16, 32)
#: The option values that ``bench --quick`` sets. A problem (a call to measure) takes about a second. After the
#: number of seconds that ``seconds`` gives, ``bench`` begins no further problem.
QUICK: Mapping[str, Any] = {"seq_lens": (4096,), "num_seqs": (1,), "rounds": 3, "against": ("sdpa",), "seconds": 45.0}


def _shown(numbers: tuple[int, ...]) -> str:
    return f"[default: {','.join(map(str, numbers))}]"


PATH = click.Path(path_type=Path)
spec_argument = click.argument("spec", type=PATH)
device_option = click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
filter_option = click.option(
    "--filter", "-f", "filters", multiple=True, metavar="FILTER", help="A glob of names, or axis=value. Repeatable."
)
max_gib_option = click.option(
    "--max-gib", type=Gibibytes(min=0, min_open=True), default=2.0, show_default=True,
    help="Leave out problems with a larger KV cache.",
)  # fmt: skip


@click.command()
@spec_argument
@device_option
@filter_option
@click.option(
    "--operator", type=click.Choice(["decode", "extend"]), default="decode", show_default=True, help="What to measure."
)
@click.option("--query-lens", type=Numbers(), help=f"New tokens of each sequence, for extend.  {_shown(BENCH_QUERIES)}")
@click.option("--seq-len", "seq_lens", type=Numbers(), default=BENCH_LENGTHS, help=f"Lengths.  {_shown(BENCH_LENGTHS)}")
@click.option(
    "--num-seqs", type=Numbers(), default=BENCH_BATCHES, help=f"Sequences in a batch.  {_shown(BENCH_BATCHES)}"
)
@click.option(
    "--against", multiple=True, type=click.Choice(["sdpa", "flex", "seed", "vllm", "none"]),
    default=("sdpa", "seed", "vllm"), show_default=True, help="A baseline to measure beside the kernels. Repeatable.",
)  # fmt: skip
@click.option("--tensor-parallel", type=click.IntRange(min=1), help="The rank's heads.  [default: the fewest ranks]")
@click.option(
    "--rounds", type=click.IntRange(min=3), default=7, show_default=True, help="Samples of each kernel and baseline."
)
@max_gib_option
@click.option("--quick", is_flag=True, help="Under a minute: 4096 tokens, one sequence, 3 rounds, against sdpa.")
@click.option("--json", "json_file", type=PATH, metavar="FILE", help="Also write all figures to FILE.")
@click.pass_context
def bench(
    ctx: click.Context,
    /,
    spec: Path,
    device: str,
    filters: tuple[str, ...],
    json_file: Path | None,
    quick: bool,
    operator: str,
    query_lens: tuple[int, ...] | None,
    **options: Any,
) -> None:
    """Measure the kernels of SPEC beside torch's attention, a simple PyTorch algorithm and vLLM's operator.

    First, the results of each kernel and baseline are compared with a float64 reference. Kernels and baselines with
    wrong results are not timed. If a generated kernel fails or has wrong results, the exit status is 1.

    Kernels and baselines with right results are timed in rounds. Each round times every kernel and baseline once, in a
    random order. Successive calls read different inputs. Together, these inputs are larger than the cache of the CPU or
    GPU.

    A table is printed as soon as all of its lines are measured. Ctrl-C ends the measurement. The times measured until
    then are printed, and kept in the file that --json names.

    With --operator extend, the extend kernels are measured beside torch's attention and decode kernels. An extend
    kernel computes attention for several new tokens of each sequence. The lengths in --seq-len include the new tokens.

    \b
    Example:
      pav2gen bench specs/qwen36.yaml --quick
      pav2gen bench specs/qwen36.yaml --filter dtype=float16 --seq-len 8192,100000
      pav2gen bench specs/qwen36.yaml --device cuda --json bench.json
      pav2gen bench specs/qwen36.yaml --operator extend --query-lens 4,8,512 --quick
    """
    require_torch("bench")
    from pav2gen.bench.extending import extend_bench, extend_table
    from pav2gen.bench.measuring import machine, table
    from pav2gen.bench.measuring import measurement_file as document
    from pav2gen.bench.measuring.bench import BenchOptions, interrupted, wrong
    from pav2gen.bench.measuring.bench import bench as measure_decode
    from pav2gen.bench.measuring.live import Live

    extending = operator == "extend"
    if query_lens and not extending:
        raise UserError("--query-lens is for extend kernels; add --operator extend")
    if json_file:
        check_output(json_file, spec)
        document.check_writable(json_file, extend_bench.KIND if extending else document.KIND)
    options |= quick_options(ctx) if quick else {}
    against = tuple(name for name in options.pop("against") if name != "none")
    live = Live(json_file, extend_table if extending else table)
    with progress() as bar:
        options |= {"against": against, "command": command_line(ctx), "progress": bar, "kept": live.keep}
        chosen, on = selected(spec, filters), machine.device_of(device)
        if extending:
            own = extend_bench.ExtendOptions(on, query_lens=query_lens or BENCH_QUERIES, **options)
            found = extend_bench.measure_all(chosen, own)
        else:
            found = measure_decode(chosen, BenchOptions(on, **options))
    live.end(found)
    failures = list(wrong(found))
    for failure in failures:
        click.echo(f"error: {failure}", err=True)
    ctx.exit(130 if interrupted(found) else 1 if failures else 0)


def quick_options(ctx: click.Context) -> dict[str, Any]:
    """Return the option values that ``--quick`` sets, without the options that the user gave on the command line."""
    given = {name for name in QUICK if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    return {name: value for name, value in QUICK.items() if name not in given}


@click.command()
@spec_argument
@device_option
@filter_option
@click.option("--seq-len", "seq_lens", type=Numbers(), help="Lengths.  [default: powers of two above min_seq_len]")
@click.option("--num-seqs", type=Numbers(), default=TUNE_BATCHES, help=f"Sequences in a batch.  {_shown(TUNE_BATCHES)}")
@click.option("--rounds", type=click.IntRange(min=3), default=7, show_default=True, help="Samples in a run.")
@click.option(
    "--runs",
    type=click.IntRange(min=2),
    default=3,
    show_default=True,
    help="Runs of each measurement. They must agree.",
)
@max_gib_option
@click.option("--replace", is_flag=True, help="Drop rows of an earlier run that this run does not measure.")
@click.option("--layouts", is_flag=True, help="Compare layouts of the CUDA kernels instead, and print the best.")
@click.pass_context
def tune(
    ctx: click.Context, /, spec: Path, device: str, filters: tuple[str, ...], layouts: bool, **options: Any
) -> None:
    """Find the fastest partition sizes for SPEC on this device, and write them to specs/tuning/SPEC.DEVICE.yaml.

    Each row of that file has the fastest partition size for some calls. The next pav2gen build copies the rows into the
    dispatch table. On this device, the rows then decide the partition size in place of an estimate of the time. For
    example, a row that was measured with 8 sequences of 16384 tokens applies to calls with 5 to 8 sequences, if the
    longest sequence has 8193 to 16384 tokens.

    Kernels with wrong results get no row, and the exit status is then 1. Measurements that differ too much between runs
    are marked as noisy in the file, and the dispatch table does not use them. If the command is interrupted, the next
    run continues after the last finished measurement.

    With --layouts, no file is written. A layout says how a thread block of a CUDA kernel divides its work. The command
    compiles the CUDA kernels in several promising layouts, and times them. The command prints the times, and the line
    to write into the spec to select the fastest layout.

    \b
    Example:
      pav2gen tune specs/qwen36.yaml --device cuda --layouts
      pav2gen tune specs/qwen36.yaml --device cuda
      pav2gen tune specs/qwen36.yaml --filter dtype=float16 --num-seqs 1,8 --seq-len 16384,131072
      pav2gen build specs/qwen36.yaml
    """
    require_torch("tune")
    from pav2gen.bench.measuring import machine
    from pav2gen.bench.tuning.tune import TuneOptions
    from pav2gen.bench.tuning.tune import tune as measure

    if layouts:
        _print_layouts(selected(spec, filters, tuned=False), machine.device_of(device), **options)
        return
    with progress() as bar:
        measured = TuneOptions(machine.device_of(device), command=command_line(ctx), progress=bar, **options)
        outcome = measure(selected(spec, filters, tuned=False), measured)
    for note in (*outcome.notes, *outcome.noisy):
        click.echo(f"note: {note}")
    for failure in outcome.wrong:
        click.echo(f"error: {failure}", err=True)
    click.echo(f"{outcome.path}: {outcome.rows} rows, {len(outcome.noisy)} measurements without effect")
    click.echo(f"next: pav2gen build {shlex.quote(str(spec))}")
    ctx.exit(1 if outcome.wrong else 0)


def _print_layouts(
    chosen: Selection, device: Any, num_seqs: tuple[int, ...], seq_lens: tuple[int, ...] | None, rounds: int, **_: Any
) -> None:
    """Time the CUDA kernels of ``chosen`` in several layouts. Print the times, and how to select the fastest layout.

    Raises UserError for a device that is not a GPU.
    """
    from pav2gen.bench.tuning.layout_search import LayoutOptions, lines, search
    from pav2gen.bench.tuning.tune import lengths_of

    if device.type != "cuda":
        raise UserError("--layouts times CUDA kernels: it needs a GPU, --device cuda")
    with progress() as bar:
        options = LayoutOptions(device, num_seqs, seq_lens or lengths_of(chosen.spec), rounds, progress=bar)
        found = search(chosen, options)
    for line in lines(found, chosen.path):
        click.echo(line)


@click.command()
@spec_argument
@filter_option
@click.option(
    "--bench", "files", multiple=True, type=PATH, metavar="FILE", help="From pav2gen bench --json. Repeatable."
)
@click.option("--out", "-o", type=PATH, help="The page to write.  [default: SPEC's name, .html]")
@ptxas_options
def report(
    spec: Path, filters: tuple[str, ...], files: tuple[Path, ...], out: Path | None, ptxas: bool, arch: str | None
) -> None:
    """Write one HTML page about the kernels of SPEC: their axes, their planned costs and their measured times.

    The page works without a network and without scripts. Without --bench, it shows no measured times, but only figures
    that are computed from the spec. With --ptxas, nvcc compiles the CUDA kernels, and the page shows how many registers
    each of them uses.

    \b
    Example:
      pav2gen bench specs/qwen36.yaml --json bench.json
      pav2gen report specs/qwen36.yaml --bench bench.json --out qwen36.html
    """
    from pav2gen.bench.reporting.report import report as page

    chosen = selected(spec, filters)
    path = out or Path(f"{chosen.spec.name}.html")
    check_output(path, spec, *files)
    check_replaceable(path, b"<!DOCTYPE html>", "a page of HTML")
    text = page(chosen, files, asked_ptxas([chosen], ptxas, arch))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    click.echo(f"{path}: {len(chosen.kernels)} kernels, {len(files)} bench {'file' if len(files) == 1 else 'files'}")


def selected(spec: Path, filters: tuple[str, ...], tuned: bool = True) -> Selection:
    """Load the spec file ``spec``, and select kernels of this spec by the options ``--filter``.

    filters: the values of ``--filter``. Without any, all kernels are selected.
    tuned: whether to read the spec's tuning files too.

    Raises UserError for a bad spec, or if no kernel is selected.
    """
    from pav2gen.reading.selection import load

    return load([spec], filters, tuned)[0]


def require_torch(command: str) -> None:
    """Raise UserError if torch is not installed.

    command: the name of the command that needs torch, for the error message.
    """
    if importlib.util.find_spec("torch") is None:
        raise UserError(f"pav2gen {command} needs torch, which is not installed; pip install 'pav2gen[torch]'")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, writes to stderr


def command_line(ctx: click.Context) -> str:
    """Return the command line that the user typed, without ``--json``.

    The options are in the order in which ``--help`` lists them.
    """
    words = ["pav2gen", str(ctx.info_name)]
    for param in ctx.command.params:
        value = ctx.params.get(str(param.name))
        if ctx.get_parameter_source(str(param.name)) != ParameterSource.COMMANDLINE or param.name == "json_file":
            continue
        if isinstance(param, click.Argument):
            words.append(str(value))
        elif isinstance(param.type, Numbers):
            words += [param.opts[0], ",".join(map(str, value))]  # type: ignore[arg-type]
        elif param.multiple:
            words += [word for each in value or () for word in (param.opts[0], str(each))]
        else:
            words += [param.opts[0]] if value is True else [param.opts[0], str(value)]
    return shlex.join(words)


@contextmanager
def progress() -> Iterator[Callable[[str, int], Callable[[], object]]]:
    """Show a progress bar on stderr, if stderr is a terminal.

    Yields a function ``begin(title, steps)``, which starts a bar with a title and a number of steps. ``begin`` returns
    a function that advances the bar by one step.
    """
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    console = Console(stderr=True)
    columns = [*Progress.get_default_columns(), TextColumn("{task.completed}/{task.total}")]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def begin(what: str, total: int) -> Callable[[], object]:
            for task in bar.task_ids:
                bar.remove_task(task)
            task = bar.add_task(what, total=total)
            return lambda: bar.advance(task)

        yield begin


COMMANDS = (bench, tune, report)
