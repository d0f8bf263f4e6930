"""Implements ``pav2gen list``: lists the kernels of specs, and the costs of each kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pav2gen.reading.selection import Selection
from pav2gen.wording import spelled

if TYPE_CHECKING:
    from rich.table import Table


def entries(selections: Iterable[Selection]) -> list[dict[str, Any]]:
    """Return an entry for each kernel: its names, the values of its axes, and the figures of its plan."""
    return [
        {
            "spec": v.spec,
            "slug": v.slug,
            "symbol": v.symbol,
            "operator": v.operator,
            **v.axes,
            "figures": p.figures,
        }
        for chosen in selections
        for v, p in chosen.built
    ]


def table(listed: Sequence[dict[str, Any]]) -> Table:
    """Return the entries as a table. It has a column for each figure that any entry has."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    figures = dict.fromkeys(name for entry in listed for name in entry["figures"])
    result = Table("spec", "kernel", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in figures:
        result.add_column(name, justify="right")
    for entry in listed:
        result.add_row(entry["spec"], entry["slug"], *(_cell(entry["figures"].get(name)) for name in figures))
    return result


def _cell(figure: object) -> str:
    """Return a figure as text. The text is empty if the figure is unknown, or if the kernel does not have it."""
    return "" if figure is None else spelled(figure)
