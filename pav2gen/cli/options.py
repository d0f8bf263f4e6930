"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pav2gen.errors import UserError

Command = TypeVar("Command", bound=Callable[..., Any])


class NonEmptyPath(click.Path):
    """The type of a path on the command line. An empty path is an error. Otherwise, ``--out "$UNSET"`` would mean the
    current folder.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return ``value``, the text of an argument or option, as a path. An empty text is an error."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


def default_specs(ctx: click.Context, param: click.Parameter, value: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the spec files that the user named, or all of ``specs/*.yaml`` if the user named none.

    Raises UserError if there are no spec files.
    """
    paths = value or tuple(sorted(Path("specs").glob("*.yaml")))
    if not paths and not ctx.resilient_parsing:
        raise UserError("there are no specs/*.yaml here; name the spec files, or change to the folder that has specs/")
    return paths


def complete_axis(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the words that a shell offers as completions of ``incomplete``, such as ``head_size=`` for ``he``."""
    from pav2gen.family.axes import AXES

    return [f"{name}=" for name in (*AXES, "operator") if name.startswith(incomplete)]


PATH = NonEmptyPath(path_type=Path)
specs_argument = click.argument("specs", nargs=-1, metavar="[SPEC]...", type=PATH, callback=default_specs)
out_option = click.option(
    "--out", "-o", type=PATH, default="generated", show_default=True, help="The generated package."
)
dry_run_option = click.option("--dry-run", "-n", is_flag=True, help="Print what would change, and write nothing.")
force_option = click.option("--force", is_flag=True, help="Replace or remove even files that were edited by hand.")


def verbosity_options(command: Command) -> Command:
    """Add the options ``--verbose`` and ``--quiet`` to ``command``, and return it."""
    quiet = click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
    return click.option("--verbose", "-v", is_flag=True, help="Print a line for each file.")(quiet(command))
