"""Where tables are printed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table: within the width of a terminal, else a row on each line, however long."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    Console(width=None if terminal else 1000, force_terminal=terminal, highlight=False).print(table)
