"""Formats the counters of a session's report as plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Line, Report, Traffic


def render_report(report: Report) -> str:
    """Format a line of totals, then the tables of kernels, of buffers and of source lines, separated by empty lines.

    The report of a fast build has no tables of buffers and source lines, because a fast build does not count memory
    accesses.
    """
    parts = [_head(report), _kernels(report)]
    if report.checked:
        parts += [_buffers(report), _lines(report, shared=False), _lines(report, shared=True)]
    return "\n\n".join(p for p in parts if p)


def _head(report: Report) -> str:
    t = report.totals
    words = (
        f"warp size {report.warp_size}, {'checked' if report.checked else 'fast'} build: {t.launches} launches, "
        f"{t.blocks} blocks, {t.threads} threads, {t.barriers} barriers, {t.collectives} collectives"
    )
    if report.checked:
        words += f", {t.local_bytes} bytes of local memory accesses"
    if t.approximate:
        words += "\nthe lanes of some warps did not meet for long: accesses of warps and sectors are upper bounds"
    return words


def _kernels(report: Report) -> str:
    rows = [
        [k.name, k.launches, k.blocks, k.threads, k.barriers, k.collectives, k.static_shared, k.dynamic_shared]
        for k in report.kernels
    ]
    head = ["kernel", "launches", "blocks", "threads", "barriers", "collectives", "static B", "dynamic B"]
    return _grid(head, rows)


def _buffers(report: Report) -> str:
    rows: list[list[object]] = []
    for b in report.buffers.values():
        kind = "shared" if b.shared else "global"
        rows.append([b.name, kind, b.bytes, b.loads.bytes, _widths(b.load_widths), _cost(b.loads, b.shared),
                     "" if b.shared else f"{b.reread:.2f}", b.stores.bytes, _widths(b.store_widths),
                     _cost(b.stores, b.shared)])  # fmt: skip
    head = ["buffer", "space", "size", "loaded", "accesses by width", "cost", "reread", "stored", "accesses by width",
            "cost"]  # fmt: skip
    return _grid(head, rows)


def _widths(widths: dict[int, int]) -> str:
    return " ".join(f"{width}B:{count}" for width, count in widths.items())


def _cost(t: Traffic, shared: bool) -> str:
    """Return the cost of the memory accesses to a buffer, as text for a table cell.

    For a buffer in global memory, the cost is the number of 32-byte sectors that the accesses touch. For a buffer in
    shared memory, the cost is the number of cycles that the accesses take. The text is empty if there were no accesses.
    """
    if shared:
        return f"{t.passes} passes, ideal {t.passes_ideal}" if t.passes else ""
    return f"{t.sectors_32} x 32 B" if t.sectors_32 else ""


def _lines(report: Report, shared: bool) -> str:
    rows = [_line(line) for line in report.lines if line.shared == shared]
    last = ["passes", "ideal"] if shared else ["32B", "64B", "128B"]
    space = "shared" if shared else "global"
    return _grid([f"line ({space})", "buffer", "what", "width", "accesses", "lanes", "bytes", *last], rows)


def _line(line: Line) -> list[object]:
    t = line.traffic
    cost = [t.passes, t.passes_ideal] if line.shared else [t.sectors_32, t.sectors_64, t.sectors_128]
    return [line.location, line.buffer, line.operation, line.width, t.accesses, t.lanes, t.bytes, *cost]


def _grid(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format a table with a header line and aligned columns.

    A column that has only integers is aligned to the right, and every other column to the left. The result is an empty
    string if `rows` is empty.

    `head`: the titles of the columns.
    `rows`: the cells of each row.
    """
    if not rows:
        return ""
    cells = [list(head)] + [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    numeric = [all(isinstance(row[i], int) for row in rows) for i in range(len(head))]
    out = [
        "  ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([out[0], "-" * max(map(len, out)), *out[1:]])
