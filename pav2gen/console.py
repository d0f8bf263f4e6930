"""Where tables are printed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table: within the width of a terminal, else a row on each line, however long.

    It has no colours and no bold letters where NO_COLOR is set to anything.
    """
    from rich.console import Console

    terminal = sys.stdout.isatty()
    plain = not terminal or bool(os.environ.get("NO_COLOR"))
    width = None if terminal else 1000
    colors = None if plain else "auto"
    Console(width=width, force_terminal=terminal, color_system=colors, highlight=False).print(table)  # type: ignore[arg-type]
