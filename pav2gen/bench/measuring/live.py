"""Shows and saves the results of a measurement while it runs, and shows the remaining time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from pav2gen.bench.measuring import measurement_file, table
from pav2gen.console import print_table


class Live:
    """Prints the results of a measurement on stdout while it runs.

    If ``file`` is not None, also writes them to this file.

    A table is printed after the first problem of the next table was measured. The remaining time is printed on stderr
    after the first problem and after each table.

    shown: the module that makes the tables, such as ``measuring.table``.
    """

    def __init__(self, file: Path | None, shown: ModuleType = table) -> None:
        self._shown = shown
        self._file = file
        self._printed = 0

    def keep(self, document: Mapping[str, Any], remaining: float) -> None:
        """Show and save ``document`` after one more problem was measured.

        remaining: the estimated seconds for the problems that are not measured yet.
        """
        if self._file:
            measurement_file.write(self._file, document)
        before = self._printed
        self._print(document, whole=not remaining)
        if remaining and (len(document["points"]) == 1 or self._printed > before):
            click.echo(f"about {duration(remaining)} left, estimated from the problems measured so far", err=True)

    def end(self, document: Mapping[str, Any]) -> None:
        """Print everything that was not printed yet, and save ``document``. Call this after an interruption, too."""
        self._print(document, whole=True)
        if self._file and document["points"]:
            measurement_file.write(self._file, document)
        for line in self._shown.notes(document):
            click.echo(line)

    def _print(self, document: Mapping[str, Any], whole: bool) -> None:
        """Print the complete tables that were not printed yet. ``whole`` says whether the last table is complete."""
        tables = list(self._shown.tables(document))
        for each in tables[self._printed : len(tables) if whole else -1]:
            if not self._printed:
                for line in self._shown.head(document):
                    click.echo(line)
            click.echo()
            print_table(each)
            self._printed += 1


def duration(seconds: float) -> str:
    """Return a duration as text, in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
