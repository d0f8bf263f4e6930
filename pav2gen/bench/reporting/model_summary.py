"""Summarizes a spec as a table: which kernel configurations and partition sizes are built, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pav2gen.family.axes import HEADS, title
from pav2gen.family.spec import Spec
from pav2gen.plan.kernel import Plan
from pav2gen.runtime.choice.key import Key


@dataclass(frozen=True)
class Cell:
    """A cell of the table: whether a partition size is built for a configuration.

    because: the reason that the spec gives for not building it. Empty if it is built, or if there is no reason.
    number: the number of this reason in the list below the table, or 0 without a reason.
    """

    built: bool
    because: str = ""
    number: int = 0


@dataclass(frozen=True)
class SummaryRow:
    """A row of the table: a kernel configuration, and one cell for each partition size."""

    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class SummaryTable:
    """The table of configurations (rows) and partition sizes (columns).

    reasons: the list below the table, which says why kernels are not built.
    """

    sizes: tuple[int, ...]
    rows: tuple[SummaryRow, ...]
    reasons: tuple[str, ...]


def summary_table(spec: Spec, plans: Mapping[Key, Sequence[Plan]]) -> SummaryTable:
    """Make the table for the decode kernels of ``spec``.

    plans: a dict from each configuration (``Key``) to the plans of its kernels.
    """
    sizes = tuple(sorted({plan.variant.partition_size for every in plans.values() for plan in every}))
    reasons: dict[str, int] = {}
    rows = tuple(
        SummaryRow(short_title(every[0]), tuple(_cell(spec, every, size, reasons) for size in sizes))
        for every in plans.values()
    )
    return SummaryTable(sizes, rows, tuple(reasons))


def _cell(spec: Spec, every: Sequence[Plan], size: int, reasons: dict[str, int]) -> Cell:
    if any(plan.variant.partition_size == size for plan in every):
        return Cell(True)
    absent = replace(every[0].variant, partition_size=size)
    because = next((exclusion.because for exclusion in spec.exclude if exclusion.covers(absent)), "")
    return Cell(False, because, reasons.setdefault(because, len(reasons) + 1) if because else 0)


def short_title(plan: Plan) -> str:
    """Return a short title for the kernel of ``plan``: its numbers of heads, its head size, and its other axes."""
    v = plan.variant
    heads = f"{plan.rank.num_heads}/{plan.rank.num_kv_heads} heads of {v.head_size}"
    return f"{heads}, {title(v.key._asdict(), leave_out=HEADS)}"
