"""Prints and saves the results of a measurement while it runs, and prints the estimated remaining time."""

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

    A table is printed after the first problem of the next table was measured, or at the end of the measurement. The
    estimated remaining time is printed on stderr after the first problem and after each table.

    file: the file to write the JSON document to after each problem. If the path is None, no file is written.
    shown: the module that makes the tables from the JSON document, such as ``measuring.table``.
    """

    def __init__(self, file: Path | None, shown: ModuleType = table) -> None:
        self._shown = shown
        self._file = file
        self._printed = 0

    def keep(self, document: Mapping[str, Any], remaining: float) -> None:
        """Print and save the results after one more problem was measured.

        document: the JSON document with all results so far.
        remaining: the estimated seconds for the problems that are not measured yet. 0 means that all are measured.
        """
        if self._file:
            measurement_file.write(self._file, document)
        before = self._printed
        self._print(document, whole=not remaining)
        if remaining and (len(document["points"]) == 1 or self._printed > before):
            click.echo(f"about {duration(remaining)} left, estimated from the problems measured so far", err=True)

    def end(self, document: Mapping[str, Any]) -> None:
        """Print everything that was not printed yet, and save ``document``.

        Call this at the end of a measurement, even if it was interrupted.
        """
        self._print(document, whole=True)
        if self._file and document["points"]:
            measurement_file.write(self._file, document)
        for line in self._shown.notes(document):
            click.echo(line)

    def _print(self, document: Mapping[str, Any], whole: bool) -> None:
        """Print the complete tables that were not printed yet.

        whole: whether the last table of ``document`` is complete.
        """
        tables = list(self._shown.tables(document))
        for each in tables[self._printed : len(tables) if whole else -1]:
            if not self._printed:
                for line in self._shown.head(document):
                    click.echo(line)
            click.echo()
            print_table(each)
            self._printed += 1


def duration(seconds: float) -> str:
    """Return a duration, given in seconds, as text in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
