"""Makes tables from the JSON document of ``pav2gen bench``: one for each kernel configuration (``Key``) and number
of KV heads.

For each problem (a call that was measured), a table has a line for each kernel and baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from pav2gen.runtime.choice.dispatch_row import MIB
from pav2gen.runtime.choice.key import Key

PEERS = ("sdpa", "flex", "seed", "vllm")
FIRST_COLUMNS, LAST_COLUMNS = ("S", "L", "contestant", "ms", "+-"), ("GB/s", "copy", "calls", "MiB")


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """Yield a table for each configuration (``Key``) and number of KV heads in ``document``, in the order of
    measurement.
    """
    groups: dict[tuple[Key, int], list[Mapping[str, Any]]] = {}
    for point in document["points"]:
        groups.setdefault((Key(**point["key"]), point["kv_heads"]), []).append(point)
    for (key, kv_heads), points in groups.items():
        title = f"{points[0]['num_heads']}/{kv_heads} heads, {key}"
        yield _table(title, points)


def _table(title: str, points: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    peers = [peer for peer in PEERS if any(_timed(point, peer) for point in points)]
    for column in (*FIRST_COLUMNS, *(f"x {peer}" for peer in peers), *LAST_COLUMNS):
        table.add_column(column, justify="left" if column == "contestant" else "right", no_wrap=True)
    for point in points:
        timed = [entry for entry in point["contestants"] if "median_ms" in entry]
        for number, entry in enumerate(timed):
            head = (str(point["num_seqs"]), str(point["seq_len"])) if not number else ("", "")
            table.add_row(*head, *_cells(entry, point, peers), end_section=entry is timed[-1])
    table.caption = "\n".join(dict.fromkeys([*_absences(points), *sampled_once(points)]))
    table.caption_justify = "left"
    return table


def _timed(point: Mapping[str, Any], name: str) -> bool:
    return any(entry["name"] == name and "median_ms" in entry for entry in point["contestants"])


def _absences(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line of text for each kernel or baseline that was not timed, with the reason.

    If the texts of several lines are equal, the caller shows them once.
    """
    for point in points:
        for entry in point["contestants"]:
            if entry["because"]:
                at = f" at S={point['num_seqs']} L={point['seq_len']}" if "symbol" in entry else ""
                yield f"{entry['name']}{at}: {entry['because']}"


def sampled_once(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line of text for each baseline that was sampled only once because it is slow.

    The line names the problems in which that happened.
    """
    found: dict[str, list[str]] = {}
    for point in points:
        query = f" Q={point['query_len']}" if "query_len" in point else ""
        at = f"S={point['num_seqs']} L={point['seq_len']}{query}"
        for entry in point["contestants"]:
            if is_single(entry):
                found.setdefault(entry["name"], []).append(at)
    yield from (f"{name}: sampled only once, because it is slow: {', '.join(at)}" for name, at in found.items())


def is_single(entry: Mapping[str, Any]) -> bool:
    """Whether the time in ``entry``, a kernel's or baseline's entry, is one sample and not the median of several."""
    return len(entry.get("samples_ms", ())) == 1


def spread(entry: Mapping[str, Any]) -> str:
    """Return the spread of the times in ``entry`` as text in percent, or "once" if there is only one time."""
    return "once" if is_single(entry) else f"{entry['spread']:.0%}"


def is_chosen(entry: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    """Whether ``entry`` is the entry of the kernel that the dispatch table chooses for the problem of ``point``.

    point: the entry of a problem in ``points`` of the JSON document.
    """
    return "symbol" in entry and point["chosen"].get(entry["backend"]) == entry["symbol"]


def _cells(entry: Mapping[str, Any], point: Mapping[str, Any], peers: Sequence[str]) -> tuple[str, ...]:
    """Return the cells in the line of a kernel or baseline: its name and its figures.

    A ``*`` after the name marks the kernel that the dispatch table chooses.

    entry, point: the entries of the kernel or baseline and of its problem in the JSON document.
    peers: the names of baselines. The line has the time of each of them, divided by the time in ``entry``.
    """
    launches = entry["launches"]
    return (
        entry["name"] + " *" * is_chosen(entry, point),
        milliseconds(entry["median_ms"]),
        spread(entry),
        *(_ratio(entry, point, name) for name in peers),
        f"{entry['gbps']:.1f}",
        f"{entry['share_of_copy']:.0%}",
        "-" if launches is None else str(launches),
        f"{entry['workspace_bytes'] / MIB:.1f}",
    )


def milliseconds(value: float) -> str:
    """Return a time, given in milliseconds, as text: three significant digits, or whole milliseconds from 1000 on."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def ratio(entry: Mapping[str, Any], point: Mapping[str, Any], peer: str) -> float | None:
    """Return the median time of the baseline ``peer``, divided by the median time in ``entry``.

    Returns None if one of the two was not timed.

    entry, point: the entries of a kernel or baseline and of its problem in the JSON document.
    """
    times = {other["name"]: other.get("median_ms") for other in point["contestants"]}
    return times[peer] / entry["median_ms"] if times.get(peer) and entry.get("median_ms") else None


def _ratio(entry: Mapping[str, Any], point: Mapping[str, Any], peer: str) -> str:
    found = None if entry["name"] == peer else ratio(entry, point, peer)
    return "" if found is None else f"{found:.1f}"


def head(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of text above the tables: the spec, the device, the versions, and the meaning of the columns."""
    device, versions = document["device"], document["versions"]
    yield f"{document['spec']['file']} on {device['name']}: {device['about']}"
    yield f"{', '.join(f'{name} {version}' for name, version in versions.items())}; {document['date']}"
    yield (
        f"ms: the median of {document['settings']['rounds']} interleaved rounds; +-: the range of their middle half; "
        f"x: times as fast; copy: bandwidth, as a share of that of a memory copy; "
        f"calls: ATen calls that are not views, and CUDA launches; MiB: workspace; *: the dispatch table's choice"
    )


def notes(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of text below the tables: the bandwidth of a memory copy, and the notes of ``document``."""
    rates = [point["copy_gbps"] for point in document["points"]]
    if rates:
        yield f"a copy reached {min(rates):.1f} to {max(rates):.1f} GB/s, read and written"
    yield from (f"note: {note}" for note in document["notes"])
