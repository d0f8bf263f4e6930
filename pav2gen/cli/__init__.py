"""The command line of pav2gen.

Each command parses its arguments, calls the module that does the work, and prints the result. The commands of
``bench.commands`` and ``install.commands`` are added here. This package may import every other package.
"""

from __future__ import annotations

import platform
import sys

import click

import pav2gen
from pav2gen.bench import commands as bench_commands
from pav2gen.cli import machine_commands, spec_commands
from pav2gen.cli.failures import Commands
from pav2gen.install import commands as install_commands


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the version and exit. With ``-v``, also print the version and the path of Python, and the platform."""
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
    """Generate paged-attention kernels from a YAML spec.

    \b
    Example:
      pav2gen init --from config.json       a spec from a model's config
      pav2gen build specs/qwen36.yaml       kernels, tests and dispatch table
      pytest generated                      test them
      pav2gen check                         are the committed files current?
    """


for module in (spec_commands, machine_commands, bench_commands, install_commands):
    for command in module.COMMANDS:
        main.add_command(command)
