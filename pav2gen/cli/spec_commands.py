"""The commands that work with specs: build, remove, check, list, explain, init and schema.

A command imports the module that does its work only when it runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import json
import shlex
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pav2gen.bench.registers.options import asked_ptxas, ptxas_options
from pav2gen.cli.options import (
    PATH,
    complete_axis,
    default_specs,
    dry_run_option,
    force_option,
    out_option,
    specs_argument,
    verbosity_options,
)
from pav2gen.console import print_table
from pav2gen.errors import UserError

if TYPE_CHECKING:
    from pav2gen.commands.build import BuildOptions, Outcome
    from pav2gen.commands.check import DriftReport

#: ``check`` prints at most this many lines for each kind of difference.
LINES = 20


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...", type=PATH)
@out_option
@click.option(
    "--filter", "-f", "filters", multiple=True, metavar="FILTER", help="A glob of names, or axis=value. Repeatable."
)
@dry_run_option
@force_option
@verbosity_options
def build(
    specs: tuple[Path, ...], out: Path, filters: tuple[str, ...], dry_run: bool, force: bool, verbose: bool, quiet: bool
) -> None:
    """Render kernels, tests and the dispatch table from SPEC files.

    Everything is rendered in memory and compared with the files on disk. The files that differ are written in one
    atomic step. Files that were edited by hand are overwritten only with --force. Files that pav2gen did not write are
    never removed.

    \b
    Example:
      pav2gen build specs/qwen36.yaml
      pav2gen build specs/*.yaml --dry-run
      pav2gen build specs/qwen36.yaml -f dtype=float16 -f '*_p512' -o /tmp/part
    """
    from pav2gen.commands.build import BuildOptions, build

    options = BuildOptions(out, filters, force, dry_run, on_wait=_say_waiting)
    _print_outcome(build(specs, options), options, verbose, quiet)


@click.command()
@click.argument("spec")
@out_option
@dry_run_option
@force_option
@verbosity_options
def remove(spec: str, out: Path, dry_run: bool, force: bool, verbose: bool, quiet: bool) -> None:
    """Remove the files of a spec, and its rows in the dispatch table. SPEC is the name of the spec, or its file.

    \b
    Example:
      pav2gen remove qwen36
    """
    from pav2gen.commands.build import BuildOptions, remove

    options = BuildOptions(out, (), force, dry_run, on_wait=_say_waiting)
    _print_outcome(remove(spec, options), options, verbose, quiet)


@click.command()
@specs_argument
@out_option
@verbosity_options
@click.pass_context
def check(ctx: click.Context, specs: tuple[Path, ...], out: Path, verbose: bool, quiet: bool) -> None:
    """Compare the generated package with a new rendering of the SPEC files, by default specs/*.yaml.

    If anything differs, the command prints how to repair it, and exits with code 1. A file that differs is
    "hand-edited", "changed" (its spec now renders to another text), "missing", or an "orphan" (it belongs to no spec).
    An interrupted build is "incomplete".

    \b
    Example:
      pav2gen check
    """
    from pav2gen.commands.build import BuildOptions
    from pav2gen.commands.check import check

    whole = ctx.get_parameter_source("specs") is not ParameterSource.COMMANDLINE
    report = check(specs, BuildOptions(out, on_wait=_say_waiting), whole)
    if not quiet:
        _print_report(report, LINES if not verbose else len(report.drifts))
    ctx.exit(1 if report.drifts else 0)


@click.command("list")
@specs_argument
@click.option("--filter", "-f", "filters", multiple=True, help="A glob of names, or axis=value. Repeatable.")
@ptxas_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(specs: tuple[Path, ...], filters: tuple[str, ...], as_json: bool, ptxas: bool, arch: str | None) -> None:
    """List the kernels of SPEC files, by default specs/*.yaml, and the costs of each kernel.

    The number of registers of a CUDA kernel, and the figures that follow from it, are estimates. With --ptxas, nvcc
    compiles the kernels, and its assembler reports the numbers. The figures are kept in the cache of compiled files.

    \b
    Example:
      pav2gen list specs/qwen36.yaml
      pav2gen list -f dtype=float16 --json
      pav2gen list specs/qwen36.yaml --ptxas --arch sm_80
    """
    from pav2gen.commands.list import entries, table
    from pav2gen.reading.selection import load

    selections = load(specs, filters)
    listed = entries(selections, asked_ptxas(selections, ptxas, arch))
    if as_json:
        click.echo(json.dumps(listed, indent=1))
    else:
        print_table(table(listed))


@click.command()
@click.argument("query", nargs=-1, metavar="[AXIS=VALUE]...", shell_complete=complete_axis)
@click.option(
    "--spec", "specs", multiple=True, type=PATH, callback=default_specs, help="A spec file; default specs/*.yaml."
)
def explain(query: tuple[str, ...], specs: tuple[Path, ...]) -> None:
    """Say which kernels have the given axis values. If no kernel has them, say why, and what to add to a spec.

    Without arguments, list the axes and their possible values.

    \b
    Example:
      pav2gen explain head_size=80 gqa_ratio=6
      pav2gen explain head_size=256 gqa_ratio=6 dtype=float16 block_size=16
      pav2gen explain head_size=256 operator=extend
    """
    from pav2gen.commands.explain import axis_lines, explain, read_query
    from pav2gen.reading.spec_file import load

    loaded = [load(path) for path in specs]
    for line in explain(read_query(query), loaded).lines() if query else axis_lines(loaded):
        click.echo(line)


@click.command()
@click.option("--from", "config", required=True, type=PATH, help="A model's config.json, as on the Hugging Face Hub.")
@click.option("--out", "-o", type=PATH, help="The spec to write.  [default: specs/NAME.yaml]")
@click.option("--force", is_flag=True, help="Replace the spec if it exists.")
@click.option("--schema", metavar="PATH", help="Name this JSON Schema in the first line, for editors.")
def init(config: Path, out: Path | None, force: bool, schema: str | None) -> None:
    """Write a first spec for a model, with comments. Print the features of the model's attention that no kernel covers.

    \b
    Example:
      pav2gen init --from config.json
      pav2gen init --from config.json --out specs/my_model.yaml
    """
    from pav2gen.commands.init import init

    draft = init(config, out, force, schema)
    click.echo(f"{draft.path}: written; read its comments before you build it")
    for note in draft.notes:
        click.echo(f"note: {note}")
    for feature in draft.uncovered:
        click.echo(f"not covered by any kernel: {feature}")
    click.echo(f"next: pav2gen build {shlex.quote(str(draft.path))}")


@click.command()
@click.option("--out", "-o", type=PATH, help="The file to write.  [default: print it]")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors. Needs --out.")
def schema(out: Path | None, quiet: bool) -> None:
    """Print the JSON Schema of a spec. Editors use it to complete and check specs.

    \b
    Example:
      pav2gen schema -o specs/spec.schema.json
      pav2gen init --from config.json --schema specs/spec.schema.json
    """
    from pav2gen.commands.schema import schema_text, write_schema

    if quiet and out is None:
        raise UserError("--quiet needs --out: without it, the schema is printed")
    if out is None:
        click.echo(schema_text(), nl=False)
    else:
        write_schema(out)
        if not quiet:
            click.echo(f"{out}: written; name it in a spec's first line: # yaml-language-server: $schema={out.name}")


def _say_waiting(holder: str) -> None:
    click.echo(f"waiting for {holder}, which has locked the package", err=True)


def _print_outcome(outcome: Outcome, options: BuildOptions, verbose: bool, quiet: bool) -> None:
    """Print the changes that a build or a removal made. After a dry run, print the changes that a real run would make.

    After a dry run, raises the error that a real run would raise.
    """
    if quiet and outcome.refusal:
        raise outcome.refusal
    if quiet:
        return
    for change in outcome.changes if options.dry_run or verbose else ():
        click.echo(
            f"{change.kind:8} {outcome.shown}/{change.path}{'' if change.ours else '  (not ours: needs --force)'}"
        )
    written = _files(outcome.count("new") + outcome.count("changed"))
    would = "would be " if options.dry_run else ""
    built = ", ".join(f"{name}: {number} kernel{'s' * (number > 1)}" for name, number in outcome.kernels.items())
    click.echo(
        f"{outcome.shown}: {written} {would}written, {outcome.count('removed')} {would}removed,"
        f" {outcome.unchanged} unchanged{f' ({built})' if built else ''}"
    )
    for note in outcome.notes:
        click.echo(f"note: {note}")
    if outcome.refusal:
        raise outcome.refusal
    if not options.dry_run:
        click.echo(f"next: pytest {shlex.quote(outcome.shown)}")


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


def _print_report(report: DriftReport, most: int) -> None:
    """Print the differences between a package and its specs, and then the commands that repair the differences.

    Each kind of difference gets at most ``most`` lines.
    """
    if not report.drifts:
        click.echo(f"{report.shown}: all {report.files} files are current")
        return
    for kind, drifts in groupby(report.drifts, key=lambda drift: drift.kind):
        every = list(drifts)
        for drift in every[:most]:
            click.echo(f"{kind:11} {report.shown}/{drift.path}{f'  ({drift.note})' if drift.note else ''}")
        if len(every) > most:
            click.echo(f"{kind:11} and {len(every) - most} more")
    click.echo("to repair it:")
    for command in report.repairs:
        click.echo(f"  {command}")


COMMANDS = (build, remove, check, list_, explain, init, schema)
