"""Implements ``pav2gen list``: lists the kernels of specs, and the costs of each kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pav2gen.bench.registers.compiled_figures import figures
from pav2gen.bench.registers.ptxas import Measured
from pav2gen.reading.selection import Selection
from pav2gen.wording import spelled

if TYPE_CHECKING:
    from rich.table import Table


def entries(selections: Iterable[Selection], measured: Mapping[str, Measured] | None = None) -> list[dict[str, Any]]:
    """Return a dict for each kernel: its names, the values of its axes, and the figures of its plan.

    measured: maps the name of a spec to the figures of its CUDA kernels that ptxas, the assembler of nvcc, reports.
    These figures replace the plan's estimates.
    """
    return [
        {
            "spec": v.spec,
            "slug": v.slug,
            "symbol": v.symbol,
            "operator": v.operator,
            **v.axes,
            "figures": figures(kernel, (measured or {}).get(v.spec)),
        }
        for chosen in selections
        for kernel in chosen.built
        for v in (kernel.v,)
    ]


def table(listed: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row for each dict of ``entries``, and a column for each figure that any kernel has."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    columns = dict.fromkeys(name for entry in listed for name in entry["figures"])
    result = Table("spec", "kernel", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        result.add_column(name, justify="right")
    for entry in listed:
        result.add_row(entry["spec"], entry["slug"], *(_cell(entry["figures"].get(name)) for name in columns))
    return result


def _cell(figure: object) -> str:
    """Return a figure as text. The text is empty for None, which means that the kernel has no such figure or its value
    is unknown.
    """
    return "" if figure is None else spelled(figure)
