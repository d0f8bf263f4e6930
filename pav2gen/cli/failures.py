"""Prints a user's mistake or a system error as one line on stderr, and exits with code 2."""

from __future__ import annotations

import errno
import sys
from typing import Any

import click

from pav2gen.errors import UserError


class Failure(click.ClickException):
    """A user's mistake or a system error. click prints the message and exits with code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Print the message as one line to ``file``, by default stderr."""
        click.echo(f"error: {' '.join(self.message.splitlines())}", file=file, err=True)


class CompilerFailure(Failure):
    """A failed compilation of CUDA kernels. The message has the lines that the compiler wrote."""

    def show(self, file: Any = None) -> None:
        """Print all lines of the message to ``file``, by default stderr."""
        click.echo(f"error: {self.message}", file=file, err=True)


def usage_failure(error: click.UsageError) -> click.ClickException:
    """Return a Failure for ``error``, which click raised for wrong arguments of a command.

    If click raised ``error`` only to show the help of a command without arguments, return ``error`` itself.
    """
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2
        return error
    command = error.ctx.command_path if error.ctx else "pav2gen"
    return Failure(f"{error.format_message().rstrip('.')}; see {command} --help")


class Commands(click.Group):
    """The command ``pav2gen``, a click group of all other commands. The group raises users' mistakes and system errors
    as ``Failure``.

    Characters that the encoding of stdout or stderr lacks are printed as escape sequences.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options in front of the command's name, such as ``--version``. Return the arguments after these
        options.
        """
        ctx.meta["words"] = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise usage_failure(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that the user named. Raises Failure for a user's mistake or a system error."""
        for stream in (sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise usage_failure(error) from error
        except UserError as error:
            raise Failure(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader closed the pipe; click then exits silently
            raise Failure(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)) from error
