"""Makes tables from the JSON document of ``pav2gen bench --operator extend``.

Each kernel configuration (``Key``) and number of KV heads has a table. For each problem (a call that was measured), a
table has a line for each kernel and baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from pav2gen.bench.measuring.table import milliseconds, sampled_once, spread
from pav2gen.runtime.choice.dispatch_row import MIB
from pav2gen.runtime.choice.key import Key


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """Yield a table for each configuration (``Key``) and number of KV heads in ``document``, in the order of
    measurement.
    """
    groups: dict[tuple[Key, int], list[Mapping[str, Any]]] = {}
    for point in document["points"]:
        groups.setdefault((Key(**point["key"]), point["kv_heads"]), []).append(point)
    for (key, kv_heads), points in groups.items():
        yield _table(f"extend, {points[0]['num_heads']}/{kv_heads} heads, {key}", points)


def _table(title: str, points: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    others = list(dict.fromkeys(name for point in points for e in point["contestants"] for name in e.get("ratios", ())))
    for column in ("S", "L", "Q", "contestant", "ms", "+-", *(f"/ {other}" for other in others), "calls", "MiB"):
        table.add_column(column, justify="left" if column == "contestant" else "right", no_wrap=True)
    for point in points:
        timed = [entry for entry in point["contestants"] if "median_ms" in entry]
        for number, entry in enumerate(timed):
            head = [str(point[name]) if not number else "" for name in ("num_seqs", "seq_len", "query_len")]
            table.add_row(*head, *_cells(entry, others), end_section=entry is timed[-1])
    table.caption = "\n".join(dict.fromkeys([*_absences(points), *sampled_once(points)]))
    table.caption_justify = "left"
    return table


def _cells(entry: Mapping[str, Any], others: Sequence[str]) -> tuple[str, ...]:
    """Return the cells in the line of a kernel or baseline: its name, time, spread, ratios, launches and workspace.

    entry: the entry of the kernel or baseline in the JSON document.
    others: the names of baselines and decode kernels. Each ratio is the time in ``entry``, divided by the time of one
    of them.
    """
    ratios = entry["ratios"]
    return (
        entry["name"],
        milliseconds(entry["median_ms"]),
        spread(entry),
        *(f"{ratios[other]:.2f}" if other in ratios else "" for other in others),
        str(entry.get("launches", "")),
        f"{entry['workspace_bytes'] / MIB:.1f}" if "workspace_bytes" in entry else "",
    )


def _absences(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line of text for each kernel or baseline that was not timed, with the reason."""
    for point in points:
        for entry in point["contestants"]:
            if entry["because"]:
                at = f" at S={point['num_seqs']} L={point['seq_len']} Q={point['query_len']}" * ("symbol" in entry)
                yield f"{entry['name']}{at}: {entry['because']}"


def head(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of text above the tables: the spec, the device, the versions, and the meaning of the columns."""
    device, versions = document["device"], document["versions"]
    yield f"{document['spec']['file']} on {device['name']}: {device['about']}"
    yield f"{', '.join(f'{name} {version}' for name, version in versions.items())}; {document['date']}"
    yield (
        f"S: sequences; L: their tokens, with the new ones; Q: new tokens of each; ms: the median of "
        f"{document['settings']['rounds']} interleaved rounds; +-: the range of their middle half; /: times as long; "
        f"calls: ATen calls that are not views, and CUDA launches; MiB: workspace"
    )


def notes(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the notes of ``document`` as lines of text, such as a note on each problem that was left out."""
    yield from (f"note: {note}" for note in document["notes"])
