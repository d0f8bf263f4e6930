"""A summary of a spec as a table: which partition sizes are built for each key, and why others are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pav2gen.family.axes import HEADS, title
from pav2gen.family.spec import Spec
from pav2gen.plan.kernel import Plan
from pav2gen.runtime.select import Key


@dataclass(frozen=True)
class Cell:
    """A cell of the table: a partition size that is built for a key, or left out for the reason ``because``.

    ``number`` is the number of that reason in the list below the table.
    """

    built: bool
    because: str = ""
    number: int = 0


@dataclass(frozen=True)
class SummaryRow:
    """A key and its cells, one for each partition size of the family."""

    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class SummaryTable:
    """The table of keys and partition sizes, and the reasons of exclusions."""

    sizes: tuple[int, ...]
    rows: tuple[SummaryRow, ...]
    reasons: tuple[str, ...]


def summary_table(spec: Spec, plans: Mapping[Key, Sequence[Plan]]) -> SummaryTable:
    """Make the table for ``plans``, with the reasons of the exclusions that it refers to."""
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
    """A short description of a kernel: its heads, its head size, and the axes with unusual values."""
    v = plan.variant
    heads = f"{plan.rank.num_heads}/{plan.rank.num_kv_heads} heads of {v.head_size}"
    return f"{heads}, {title(v.key._asdict(), leave_out=HEADS)}"
