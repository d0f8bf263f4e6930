"""Prints tables on the console."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def print_table(table: Table) -> None:
    """Print ``table``. On a terminal, the table is at most as wide as the terminal. In a file or a pipe, lines have at
    most 1000 characters.

    If the environment variable NO_COLOR is not empty, the table has no colours and no bold letters.
    """
    from rich.console import Console

    terminal = sys.stdout.isatty()
    plain = not terminal or bool(os.environ.get("NO_COLOR"))
    width = None if terminal else 1000
    colors = None if plain else "auto"
    Console(width=width, force_terminal=terminal, color_system=colors, highlight=False).print(table)  # type: ignore[arg-type]
