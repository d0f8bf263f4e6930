"""The command line: parses arguments, calls the module that does a command's work, and prints the result.

A command imports its module only when it runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

import pav2gen
from pav2gen.bench import commands as bench_commands
from pav2gen.console import print_table
from pav2gen.errors import UserError
from pav2gen.install import commands as install_commands

if TYPE_CHECKING:
    from pav2gen.commands.build import BuildOptions, Outcome
    from pav2gen.commands.check import DriftReport

Command = TypeVar("Command", bound=Callable[..., Any])

#: ``check`` prints at most this many lines for each kind of difference.
LINES = 20


class Failure(click.ClickException):
    """A user's mistake. It is shown as one line, and the exit code is 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Print the line to stderr."""
        click.echo(f"error: {' '.join(self.message.splitlines())}", file=file, err=True)


class CompilerFailure(Failure):
    """A compiler's messages, line by line as the compiler wrote them."""

    def show(self, file: Any = None) -> None:
        """Print the lines to stderr."""
        click.echo(f"error: {self.message}", file=file, err=True)


def _usage(error: click.UsageError) -> click.ClickException:
    """Convert an error in a command's arguments to a Failure. The exception that shows the help is not converted."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2
        return error
    command = error.ctx.command_path if error.ctx else "pav2gen"
    return Failure(f"{error.format_message().rstrip('.')}; see {command} --help")


class Commands(click.Group):
    """The group of all commands. It shows mistakes and system errors as one line, and prints text in any locale."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments before the command's name."""
        ctx.meta["words"] = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _usage(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        for stream in (sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _usage(error) from error
        except UserError as error:
            raise Failure(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader closed the pipe; click then exits silently
            raise Failure(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)) from error


class NonEmptyPath(click.Path):
    """A path that must not be empty, so that ``--out "$UNSET"`` is an error and not the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Turn the argument into a path."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


def _default_specs(ctx: click.Context, param: click.Parameter, value: tuple[Path, ...]) -> tuple[Path, ...]:
    """The spec files given, or all of ``specs/*.yaml``."""
    paths = value or tuple(sorted(Path("specs").glob("*.yaml")))
    if not paths and not ctx.resilient_parsing:
        raise UserError("there are no specs/*.yaml here; name the spec files, or change to the folder that has specs/")
    return paths


def _complete_axis(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The axes that a shell offers for ``AXIS=VALUE``."""
    from pav2gen.family.axes import AXES

    return [f"{name}=" for name in AXES if name.startswith(incomplete)]


PATH = NonEmptyPath(path_type=Path)
specs_argument = click.argument("specs", nargs=-1, metavar="[SPEC]...", type=PATH, callback=_default_specs)
out_option = click.option(
    "--out", "-o", type=PATH, default="generated", show_default=True, help="The generated package."
)
dry_run_option = click.option("--dry-run", "-n", is_flag=True, help="Print what would change, and write nothing.")
force_option = click.option("--force", is_flag=True, help="Replace or remove even files that were edited by hand.")


def verbosity_options(command: Command) -> Command:
    """The options ``-v`` and ``-q`` of a command that reports what it did."""
    quiet = click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
    return click.option("--verbose", "-v", is_flag=True, help="Print a line for each file.")(quiet(command))


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the version and exit. With ``-v``, also print Python's version and the platform."""
    if value and not ctx.resilient_parsing:
        click.echo(f"pav2gen {pav2gen.__version__}")
        if {"-v", "--verbose"} & set(ctx.meta.get("words", ())):
            click.echo(f"Python {platform.python_version()}, {sys.executable}")
            click.echo(platform.platform())
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Print the version and exit.",
)  # fmt: skip
@click.option(
    "--verbose", "-v", is_flag=True, expose_value=False, help="With --version: also print Python and the platform."
)
def main() -> None:
    """Generate paged-attention decode kernels from a YAML spec.

    \b
    Example:
      pav2gen init --from config.json       a spec from a model's config
      pav2gen build specs/qwen36.yaml       kernels, tests and dispatch table
      pytest generated                      test them
      pav2gen check                         are the committed files current?
    """


@main.command()
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

    Everything is rendered in memory and compared with the disk. Files that differ are written in one step. A file
    edited by hand is not overwritten without --force. A file that pav2gen did not write is never removed.

    \b
    Example:
      pav2gen build specs/qwen36.yaml
      pav2gen build specs/*.yaml --dry-run
      pav2gen build specs/qwen36.yaml -f dtype=float16 -f '*_p512' -o /tmp/part
    """
    from pav2gen.commands.build import BuildOptions, build

    options = BuildOptions(out, filters, force, dry_run, on_wait=_say_waiting)
    _print_outcome(build(specs, options), options, verbose, quiet)


@main.command()
@click.argument("spec")
@out_option
@dry_run_option
@force_option
@verbosity_options
def remove(spec: str, out: Path, dry_run: bool, force: bool, verbose: bool, quiet: bool) -> None:
    """Remove the files and the dispatch rows of SPEC, a spec's name or its file.

    \b
    Example:
      pav2gen remove qwen36
    """
    from pav2gen.commands.build import BuildOptions, remove

    options = BuildOptions(out, (), force, dry_run, on_wait=_say_waiting)
    _print_outcome(remove(spec, options), options, verbose, quiet)


@main.command()
@specs_argument
@out_option
@verbosity_options
@click.pass_context
def check(ctx: click.Context, specs: tuple[Path, ...], out: Path, verbose: bool, quiet: bool) -> None:
    """Compare the generated package with a new rendering of its SPEC files, by default specs/*.yaml.

    Exits with 1 if anything differs, and prints the commands that repair it. A file that differs is "hand-edited",
    "changed" (its spec now renders to another text), "missing", or an "orphan" (it belongs to no spec). An interrupted
    build is "incomplete".

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


@main.command("list")
@specs_argument
@click.option("--filter", "-f", "filters", multiple=True, help="A glob of names, or axis=value. Repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(specs: tuple[Path, ...], filters: tuple[str, ...], as_json: bool) -> None:
    """List the variants of SPEC files, by default specs/*.yaml, and the costs of each.

    \b
    Example:
      pav2gen list specs/qwen36.yaml
      pav2gen list -f dtype=float16 --json
    """
    from pav2gen.commands.list import entries, table
    from pav2gen.reading.selection import load

    listed = entries(load(specs, filters))
    if as_json:
        click.echo(json.dumps(listed, indent=1))
    else:
        print_table(table(listed))


@main.command()
@click.argument("query", nargs=-1, metavar="[AXIS=VALUE]...", shell_complete=_complete_axis)
@click.option(
    "--spec", "specs", multiple=True, type=PATH, callback=_default_specs, help="A spec file; default specs/*.yaml."
)
def explain(query: tuple[str, ...], specs: tuple[Path, ...]) -> None:
    """Say which kernel serves a key. If none does, say why, and what to add to a spec.

    Without arguments, list the axes and their possible values.

    \b
    Example:
      pav2gen explain head_size=80 gqa_ratio=6
      pav2gen explain head_size=256 gqa_ratio=6 dtype=float16 block_size=16
    """
    from pav2gen.commands.explain import axis_lines, explain, read_query
    from pav2gen.reading.spec_file import load

    loaded = [load(path) for path in specs]
    for line in explain(read_query(query), loaded).lines() if query else axis_lines(loaded):
        click.echo(line)


@main.command()
@click.option("--from", "config", required=True, type=PATH, help="A model's config.json, as on the Hugging Face Hub.")
@click.option("--out", "-o", type=PATH, help="The spec to write.  [default: specs/NAME.yaml]")
@click.option("--force", is_flag=True, help="Replace the spec if it exists.")
@click.option("--schema", metavar="PATH", help="Name this JSON Schema in the first line, for editors.")
def init(config: Path, out: Path | None, force: bool, schema: str | None) -> None:
    """Write a first spec for a model, with comments. Say which features of its attention no kernel covers.

    \b
    Example:
      pav2gen init --from config.json
      pav2gen init --from config.json --out specs/my_model.yaml
    """
    from pav2gen.commands.init import init

    draft = init(config, out, force, schema)
    click.echo(f"{draft.path}: written; read its comments before you build it")
    for feature in draft.uncovered:
        click.echo(f"not covered by any kernel: {feature}")
    click.echo(f"next: pav2gen build {shlex.quote(str(draft.path))}")


@main.command()
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


@main.command()
@click.argument("tree", type=PATH, required=False)
@click.option("--python", default=sys.executable, help="The Python that runs vLLM.  [default: this one]")
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(tree: Path | None, python: str, out: Path, as_json: bool) -> None:
    """Show what pav2gen finds on this machine, and which command to type next.

    TREE is a vLLM tree, by default the one that the Python imports. Nothing is written. Missing parts are not errors.

    \b
    Example:
      pav2gen doctor
      pav2gen doctor /usr/local/corex/lib64/python3/dist-packages --json
    """
    from pav2gen.commands.doctor import DoctorOptions, examine

    found = examine(DoctorOptions(python, tree, out))
    if as_json:
        click.echo(json.dumps(found.document(), indent=1))
    else:
        for line in found.lines():
            click.echo(line)


@main.command("compile")
@click.argument("package", type=PATH, default="generated")
@click.option("--toolchain", type=click.Choice(["corex", "nvcc", "host"]), help="[default: corex if found, else nvcc]")
@click.option("--arch", help="ivcore10 for a BI-V100, CoreX's default; sm_75 and the like for nvcc.")
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Compilers that run together.  [default: one for each processor]"
)
@click.option("--warp-size", type=click.Choice(["32", "64"]), default="64", help="Warp size of the host toolchain.")
@click.option("--checked", is_flag=True, help="With the host toolchain: check and count every memory access.")
def compile_(
    package: Path, toolchain: str | None, arch: str | None, jobs: int | None, warp_size: str, checked: bool
) -> None:
    """Compile the CUDA kernels of PACKAGE, a generated package, into one library, and print its path.

    The library is kept in the platform's cache folder. Its name is a hash of everything that it is built from. Inside a
    fork without pav2gen, run: python .../pav2/runtime/library.py

    \b
    Example:
      pav2gen compile --toolchain corex
      pav2gen compile --toolchain nvcc --arch sm_75
      pav2gen compile --toolchain host
    """
    from pav2gen.runtime.library import LibraryError, build, kernels_of, package_rows

    try:
        kernels = kernels_of(package_rows(package.resolve()), package.resolve())
        path = build(kernels, toolchain, arch, jobs, int(warp_size), checked, verbose=True)
    except LibraryError as error:
        raise CompilerFailure(str(error)) from None
    click.echo(os.fsencode(path))


@main.group()
def simt() -> None:
    """Run CUDA programs on the CPU, at warp size 64 or 32. Check and count every read and write of memory.

    \b
    Example:
      pav2gen simt run scale.cu
    """


@simt.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Compile a CUDA program with a main() of its own, run it, and print findings and counters.

    \b
    Example:
      pav2gen simt run scale.cu
      pav2gen simt run --help
    """
    from pav2gen.runtime.simt import main as run_program

    sys.exit(run_program(arguments, prog="pav2gen simt run"))


for command in (*bench_commands.COMMANDS, *install_commands.COMMANDS):
    main.add_command(command)


def _say_waiting(holder: str) -> None:
    click.echo(f"waiting for {holder}, which holds the package", err=True)


def _print_outcome(outcome: Outcome, options: BuildOptions, verbose: bool, quiet: bool) -> None:
    """Print what a build did, in a line or two. For a dry run, print what it would do, file by file."""
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
    """Print the differences, at most ``most`` lines of each kind, then the commands that repair them."""
    if not report.drifts:
        click.echo(f"{report.shown}: all {report.files} files are current")
        return
    for kind, drifts in groupby(report.drifts, key=lambda drift: drift.kind):
        every = list(drifts)
        for drift in every[:most]:
            click.echo(f"{kind:11} {report.shown}/{drift.path}{f'  ({drift.note})' if drift.note else ''}")
        if len(every) > most:
            click.echo(f"{kind:11} and {len(every) - most} more")
    click.echo("to put it right:")
    for command in report.repairs:
        click.echo(f"  {command}")
