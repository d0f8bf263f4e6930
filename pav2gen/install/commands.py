"""Defines the commands ``install``, ``status``, ``uninstall`` and ``wheel``: their arguments and printed output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pav2gen.install.apply import InstallOptions, Outcome, PlannedInstall
    from pav2gen.install.package_contents import PackageContents
    from pav2gen.install.status import Status
    from pav2gen.install.undo import Undone

Command = TypeVar("Command", bound=Callable[..., Any])

tree_argument = click.argument("tree", type=click.Path(path_type=Path))
out_option = click.option(
    "--out", "-o", type=click.Path(path_type=Path), default=Path("generated"), show_default=True,
    help="The folder of the generated package.",
)  # fmt: skip
dry_run_option = click.option(
    "--dry-run", "-n", is_flag=True, help="Print a unified diff of the edits, and change nothing."
)
force_option = click.option("--force", is_flag=True, help="Also replace or remove what was edited by hand.")
spec_option = click.option("--spec", "specs", multiple=True, metavar="NAME", help="Only this spec. Repeatable.")
min_seq_len_option = click.option(
    "--min-seq-len",
    type=click.IntRange(0, 2**31 - 1),
    metavar="N",
    help="Prefer V2 above N tokens, whatever the specs say.",
)
prebuilt_option = click.option(
    "--prebuilt",
    type=click.Path(path_type=Path),
    metavar="LIB",
    help="A library of the CUDA kernels that was compiled elsewhere.",
)


def choice_options(command: Command) -> Command:
    """Add the options ``--spec``, ``--min-seq-len`` and ``--prebuilt`` to the click command ``command``."""
    for option in (prebuilt_option, min_seq_len_option, spec_option):
        command = option(command)
    return command


@click.command()
@tree_argument
@choice_options
@click.option("--with-tests", is_flag=True, help="Also install the tests of the kernels.")
@click.option(
    "--writer",
    type=click.Choice(["auto", "always"]),
    default="auto",
    show_default=True,
    help="When the generated writer fills the cache: only if the tree's own cannot, or always.",
)
@dry_run_option
@click.option("--commit", is_flag=True, help="Commit the install in git. The work tree must be clean.")
@force_option
@click.option("--python", default=sys.executable, help="The Python that runs the tree. It tries the import first.")
@out_option
def install(
    tree: Path, specs: tuple[str, ...], min_seq_len: int | None, prebuilt: Path | None, with_tests: bool, writer: str,
    dry_run: bool, commit: bool, force: bool, python: str, out: Path,
) -> None:  # fmt: skip
    """Install the generated kernels into the vLLM at TREE. vLLM then calls them where they are faster than its own.

    TREE is a source checkout of vLLM, an installed vllm folder, the folder that contains it, or a prefix such as
    /usr/local below which vLLM is installed. The generated package is copied to vllm/attention/ops/pav2, and calls of
    its functions are inserted into vLLM's files. An earlier install is replaced. All changes are checked before the
    first file is written. If a file then cannot be written, every change is undone.

    \b
    Example:
      pav2gen install ~/vllm --dry-run
      pav2gen install ~/vllm --spec qwen36 --commit
      pav2gen install /usr/local/corex/lib64/python3/dist-packages --min-seq-len 16384
    """
    from pav2gen.install.apply import InstallOptions, install
    from pav2gen.install.package_contents import Choice

    choice = Choice(specs, min_seq_len, with_tests, prebuilt)
    options = InstallOptions(out, choice, dry_run, commit, force, writer, python, on_wait=_say_waiting)
    _print_install(install(tree, options), options)


@click.command()
@tree_argument
@out_option
@click.pass_context
def status(ctx: click.Context, tree: Path, out: Path) -> None:
    """Show which kernels are installed in the vLLM at TREE.

    Also show which files were edited since the install, and how the kernels differ from the generated package. The exit
    code is 0 if the kernels are installed, no file was edited, and nothing differs. Otherwise it is 1.

    \b
    Example:
      pav2gen status ~/vllm
    """
    from pav2gen.install.status import status

    found = status(tree, out)
    for each in found:
        _print_status(each, out)
    ctx.exit(0 if all(each.sound for each in found) else 1)


@click.command()
@tree_argument
@dry_run_option
@force_option
def uninstall(tree: Path, dry_run: bool, force: bool) -> None:
    """Remove the kernels and their calls from the vLLM at TREE. Its files are then as they were before the install.

    If someone edited vLLM's files after the install, these edits are kept.

    \b
    Example:
      pav2gen uninstall ~/vllm
    """
    from pav2gen.install.undo import uninstall

    for each in uninstall(tree, dry_run, force, _say_waiting):
        _print_undone(each, dry_run)


@click.command()
@choice_options
@click.option("--with-tests", is_flag=True, help="Also pack the tests of the kernels.")
@click.option("--name", default="pav2_kernels", show_default=True, help="The import name of the package.")
@click.option("--dest", type=click.Path(path_type=Path), default=Path("dist"), show_default=True, help="Its folder.")
@out_option
def wheel(
    specs: tuple[str, ...], min_seq_len: int | None, prebuilt: Path | None, with_tests: bool, name: str, dest: Path,
    out: Path,
) -> None:  # fmt: skip
    """Pack the generated kernels as a wheel with a vLLM plugin, for a vLLM whose files must not change.

    If the environment variable PAV2_PLUGIN is 1 when vLLM starts, the plugin changes vLLM in memory in the same way as
    an install changes vLLM's files. Otherwise, the plugin does nothing.

    \b
    Example:
      pav2gen wheel --spec qwen36
      pip install --no-deps --no-index dist/pav2_kernels-*.whl
      PAV2_PLUGIN=1 python -m vllm.entrypoints.openai.api_server ...
    """
    from pav2gen.install.package_contents import Choice
    from pav2gen.install.wheel import build_wheel

    built = build_wheel(dest, Choice(specs, min_seq_len, with_tests, prebuilt), out, name)
    click.echo(f"{dest / built.name}: {_specs(built.contents)}")


def _say_waiting(holder: str) -> None:
    click.echo(f"waiting for {holder}, which has locked the tree", err=True)


def _print_install(outcome: Outcome, options: InstallOptions) -> None:
    for planned in outcome.trees:
        _print_planned(planned, outcome, options)
    if outcome.changed and not outcome.imported:
        click.echo(
            "note: the import was not tried, because there is no Python with torch for it; give --python the one that "
            "runs the tree"
        )
    if outcome.commit:
        click.echo(f"committed {outcome.commit}")


def _print_planned(planned: PlannedInstall, outcome: Outcome, options: InstallOptions) -> None:
    from pav2gen.install.served import served

    dry_run = options.dry_run
    click.echo(f"{planned.tree.shown}: {planned.fork}")
    for note in planned.notes:
        click.echo(f"note: {note}")
    if not planned.changes:
        click.echo(f"  already installed: {_specs(outcome.contents)}; nothing to do")
        return
    if dry_run:
        click.echo(planned.diff, nl=False)
    verb = "would install" if dry_run else "installed"
    click.echo(f"  {verb} {_specs(outcome.contents)}: {len(outcome.contents.files)} files in attention/ops/pav2")
    edited = ", ".join(planned.edited)
    if planned.diff:
        click.echo(f"  {'would edit' if dry_run else 'edited'} {edited}")
    else:
        click.echo(f"  the calls in {edited} stay as they are")
    click.echo(f"  {_served_lengths(outcome.contents.thresholds())}")
    for sentence in served(planned.fork, outcome.contents.operators(), options.writer):
        click.echo(f"  {sentence}")


def _served_lengths(thresholds: Sequence[int]) -> str:
    """Return the sentence that says for which sequence lengths the generated kernels serve decodes.

    thresholds: the different values of ``min_seq_len`` of the installed specs, in tokens.
    """
    each = ", because each spec has its own min_seq_len" if len(thresholds) > 1 else ""
    return f"V2 serves decodes above {' or '.join(map(str, thresholds))} tokens{each}"


def _print_status(found: Status, out: Path) -> None:
    from pav2gen.install.served import served

    click.echo(f"{found.tree.shown}: {found.fork}")
    record = found.record
    if record is None:
        click.echo("  nothing is installed")
        return
    specs = ", ".join(f"{name} ({entry['kernels']} kernels)" for name, entry in record.specs.items())
    extras = [f"min_seq_len {record.min_seq_len}"] * (record.min_seq_len is not None)
    extras += ["with tests"] * record.tests + [f"prebuilt {record.prebuilt}"] * bool(record.prebuilt)
    click.echo(f"  installed by {record.generator}: {'; '.join([specs, *extras])}")
    for sentence in served(found.fork, record.operators, record.writer):
        click.echo(f"  {sentence}")
    if found.library:
        click.echo(f"  the library is {found.library}")
    if not record.complete:
        click.echo("  incomplete: the install was cut short; run it again")
    _print_all("edited", found.edited, "as it was installed")
    if found.stale is None:
        click.echo(f"  current: unknown; {found.unknown}")
    else:
        _print_all("not current", found.stale, f"current with {out}")


def _print_all(word: str, sentences: Iterable[str], else_: str) -> None:
    found = list(sentences)
    for sentence in found:
        click.echo(f"  {word}: {sentence}")
    if not found:
        click.echo(f"  {else_}")


def _print_undone(undone: Undone, dry_run: bool) -> None:
    if not undone.installed:
        click.echo(f"{undone.tree.shown}: nothing is installed")
        return
    if dry_run:
        click.echo(undone.diff, nl=False)
    click.echo(f"{undone.tree.shown}: {'would remove' if dry_run else 'removed'} attention/ops/pav2")
    if undone.restored:
        click.echo(f"  {'would restore' if dry_run else 'restored'} {', '.join(undone.restored)}")
    if undone.edited:
        click.echo(
            f"  note: edited since the install; only the inserted lines were removed: {', '.join(undone.edited)}"
        )
    if undone.kept:
        click.echo(
            f"  note: kept in attention/ops/pav2, because pav2gen did not install them: {', '.join(undone.kept)}"
        )


def _specs(contents: PackageContents) -> str:
    return ", ".join(f"{name} ({len(entry.rows)} kernels)" for name, entry in contents.specs.items())


COMMANDS = (install, status, uninstall, wheel)
