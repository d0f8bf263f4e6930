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
    """Return an entry for each kernel: its names, the values of its axes, and the figures of its plan.

    measured: what ptxas says about the CUDA kernels of each spec, by the spec's name. These figures replace estimates
    of the plans.
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
    """Return the entries as a table, with a column for each figure that any entry has."""
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
    """Return a figure as text. The text is empty if the figure is unknown, or if the kernel does not have it."""
    return "" if figure is None else spelled(figure)
