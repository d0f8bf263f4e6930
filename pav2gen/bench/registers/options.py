"""The options ``--ptxas`` and ``--arch`` of the commands ``pav2gen list`` and ``pav2gen report``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pav2gen.errors import UserError

if TYPE_CHECKING:
    from pav2gen.bench.registers.ptxas import Measured
    from pav2gen.reading.selection import Selection

Command = TypeVar("Command", bound=Callable[..., Any])


def ptxas_options(command: Command) -> Command:
    """Decorate a command with the options ``--ptxas`` and ``--arch``."""
    arch = click.option("--arch", help="With --ptxas: the card, such as sm_80.  [default: the target, or sm_75]")
    return click.option("--ptxas", is_flag=True, help="Compile with nvcc, and show the registers of ptxas.")(
        arch(command)
    )


def asked_ptxas(selections: Sequence[Selection], ptxas: bool, arch: str | None) -> dict[str, Measured]:
    """Return a dict from each spec's name to what ptxas printed about the CUDA kernels, if the user gave ``--ptxas``.

    ptxas, arch: the values of the options ``--ptxas`` and ``--arch``.

    Without ``--ptxas``, the dict is empty. Notes and the progress of the compilation are printed on stderr. Raises
    UserError for ``--arch`` without ``--ptxas``, or if ``measure_all`` raises it.
    """
    if not ptxas:
        if arch:
            raise UserError("--arch has no effect without --ptxas; add --ptxas")
        return {}
    from pav2gen.bench.registers.compiled_figures import measure_all, notes

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\rnvcc: {done} of {total} done", err=True, nl=done == total)

    measured = measure_all(selections, arch, progress)
    for note in notes(selections, measured):
        click.echo(f"note: {note}", err=True)
    return measured
