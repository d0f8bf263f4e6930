"""The report of a simulation session: detected faults, and counters of kernel launches and memory accesses."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from .symbols import Location, locate
from .table import render_report


class FindingsError(AssertionError):
    """The checks have detected faults of kernels in a simulation session. The exception's message lists all faults."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        super().__init__("\n".join(str(f) for f in findings))


@dataclass(frozen=True)
class Place:
    """One memory access or function call that is part of a detected fault.

    `role`: a description of the access or call, such as "store of 4 bytes" or "waits at a barrier".
    `location`: the source line of the access or call, or None if the source line is unknown.
    `block`: the index (x, y, z) of the thread block, or None if the index is unknown.
    `threads`: the threads that made the access or call, as text.
    """

    role: str
    location: Location | None
    block: tuple[int, int, int] | None
    threads: str

    def __str__(self) -> str:
        who = [f"block ({','.join(map(str, self.block))})"] if self.block else []
        who += [self.threads] if self.threads else []
        where = f"  {self.location}" if self.location else ""
        return f"{self.role}{' by ' if who else ''}{', '.join(who)}{where}"


@dataclass(frozen=True)
class Finding:
    """One fault of a kernel that the checks detected.

    `kind`: the type of the fault, such as "race".
    `what`: a description of the fault.
    `expected`: a description of what the kernel should have done.
    `places`: the memory accesses or function calls that are part of the fault.
    `kernel`: the name of the kernel.
    `buffer`: the name of the buffer in which the fault happened, or None if the fault is not in a buffer.
    `offset`: the position of the fault in the buffer, in bytes, or None if the fault is not in a buffer.
    `count`: the number of times that the fault was detected.
    `stopped`: whether the fault stopped the kernel launch.
    """

    kind: str
    what: str
    expected: str
    places: tuple[Place, ...]
    kernel: str
    buffer: str | None
    offset: int | None
    count: int
    stopped: bool

    @property
    def locations(self) -> tuple[Location, ...]:
        """The known source lines of all memory accesses and function calls that are part of the fault."""
        return tuple(p.location for p in self.places if p.location)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.what}" + (f"  (in {self.kernel})" if self.kernel else "")]
        lines += [f"    {p}" for p in self.places]
        if self.buffer is not None:
            lines.append(f"    in: '{self.buffer}', byte {self.offset}")
        lines.append(f"    expected: {self.expected}")
        if self.count > 1:
            lines.append(f"    seen {self.count} times")
        if self.stopped:
            lines.append("    the launch was stopped here")
        return "\n".join(lines)


@dataclass(frozen=True)
class Traffic:
    """Counters of a set of memory accesses.

    `accesses`: the number of warp-wide accesses. The accesses of all lanes that execute an instruction together count
    as one warp-wide access.
    `lanes`: the number of accesses, where the access of each lane counts separately.
    `bytes`: the number of bytes that the lanes requested.
    `sectors_32`, `sectors_64`, `sectors_128`: the number of global memory sectors of 32, 64 or 128 bytes that the
    warp-wide accesses touched.
    `passes`: the number of cycles that the 32 banks of shared memory need for the accesses.
    `passes_ideal`: the number of cycles that the accesses would need without bank conflicts.
    """

    accesses: int = 0
    lanes: int = 0
    bytes: int = 0
    sectors_32: int = 0
    sectors_64: int = 0
    sectors_128: int = 0
    passes_ideal: int = 0
    passes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Line:
    """The counters of the memory accesses that one source line makes to one buffer, with one operation and one width.

    `location`: the source line.
    `operation`: "load", "store" or "atomic".
    `buffer`: the name of the buffer.
    `shared`: whether the buffer is in shared memory.
    `width`: the number of bytes that a lane accesses at once.
    `traffic`: the counters of the memory accesses.
    """

    location: Location
    operation: str
    buffer: str
    shared: bool
    width: int
    traffic: Traffic


@dataclass(frozen=True)
class Buffer:
    """The counters of all memory accesses to one buffer.

    A buffer is memory that `Session.buffer` registered, an array in shared memory, or a global variable.

    `bytes`: the size of the buffer in bytes.
    `shared`: whether the buffer is in shared memory.
    `loads`, `stores`: the counters of the loads and of the stores. An atomic operation counts as a load and as a store.
    `load_widths`, `store_widths`: dicts from the number of bytes per lane to the number of warp-wide loads or stores.
    `bytes_read`, `bytes_written`: for a buffer in global memory, the number of distinct bytes that were read or
    written.
    """

    name: str
    bytes: int
    shared: bool
    loads: Traffic
    stores: Traffic
    load_widths: dict[int, int]
    store_widths: dict[int, int]
    bytes_read: int
    bytes_written: int

    @property
    def reread(self) -> float:
        """The average number of times that a byte was loaded: loaded bytes divided by distinct bytes read."""
        return self.loads.bytes / self.bytes_read if self.bytes_read else 0.0


@dataclass(frozen=True)
class Kernel:
    """Counters of all launches of one kernel in a session, and the shared memory of a thread block.

    `launches`, `blocks`, `threads`: the numbers of launches, of thread blocks and of threads that ran.
    `barriers`: the number of barriers that thread blocks passed.
    `collectives`: the number of warp-wide calls, such as shuffles.
    `static_shared`, `dynamic_shared`: the largest static and the largest dynamic shared memory of a thread block, in
    bytes.
    """

    name: str
    launches: int
    blocks: int
    threads: int
    barriers: int
    collectives: int
    static_shared: int
    dynamic_shared: int


@dataclass(frozen=True)
class Totals:
    """Counters of all kernel launches in a session.

    The fields without an entry below are sums of the `Kernel` fields with the same names over all kernels.

    `switches`: the number of times that the simulator switched from one simulated thread to another.
    `local_bytes`: the number of bytes of local memory that were loaded and stored.
    `approximate`: whether some counts of warp-wide accesses and sectors are too large. The simulator may count one
    warp-wide access as several if the lanes of the warp execute the access at very different times.
    """

    launches: int
    blocks: int
    threads: int
    barriers: int
    collectives: int
    switches: int
    local_bytes: int
    approximate: bool


@dataclass(frozen=True)
class Report:
    """The faults and the counters of a session. Calling `str()` on a report returns all faults and counters as text.

    `findings`: the faults that the checks detected.
    `warp_size`: the number of lanes in a warp, 32 or 64.
    `checked`: whether the kernels were compiled with checks of memory accesses.
    `buffers`: the counters of each buffer, by the name of the buffer.
    """

    warp_size: int
    checked: bool
    totals: Totals
    kernels: tuple[Kernel, ...]
    buffers: dict[str, Buffer]
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...]

    def raise_for_findings(self) -> None:
        """Raise FindingsError if the checks detected at least one fault in the session."""
        if self.findings:
            raise FindingsError(self.findings)

    def table(self) -> str:
        """Return the counters of the session as plain-text tables, without the faults."""
        return render_report(self)

    def __str__(self) -> str:
        found = "\n".join(str(f) for f in self.findings) or "no findings"
        return f"{found}\n\n{self.table()}"


def read_report(text: bytes, library: str | None = None) -> Report:
    """Convert the JSON text of a report to a `Report`.

    `text`: the JSON text, which the library with the kernels writes.
    `library`: the path of the library or program with the kernels and their line numbers. The default for `library` is
    the path in the JSON text.
    """
    raw: dict[str, Any] = json.loads(text.decode("utf-8", "replace"))
    places = [p for f in raw["findings"] for p in f["places"] if not p["file"]]
    offsets = [c["pc"] for c in raw["counters"]] + [p["pc"] for p in places if p["pc"]]
    where = locate(library or raw["library"], offsets)
    _tell_apart(raw)
    lines = _lines(raw, where)
    return Report(
        raw["warp_size"], bool(raw["checked"]), _totals(raw["totals"]),
        tuple(Kernel(**k) for k in raw["kernels"]), _buffers(raw, lines), lines,
        tuple(_finding(f, where) for f in raw["findings"]),
    )  # fmt: skip


def _totals(raw: dict[str, int]) -> Totals:
    return Totals(**{**raw, "approximate": bool(raw["approximate"])})  # type: ignore[arg-type]


def _tell_apart(raw: dict[str, Any]) -> None:
    """Rename each buffer that has the same name as another buffer.

    The new name begins with the name of the function that declares the buffer, as in `reduce::sums`. A buffer outside
    functions keeps its name.

    `raw`: the parsed JSON of a report, which is changed in place.
    """
    used = {c["region"] for c in raw["counters"]}
    regions = [r for r in raw["regions"] if r["id"] in used or r["registered"]]
    names = Counter(r["name"] for r in regions)
    for r in regions:
        if names[r["name"]] > 1 and r["scope"]:
            r["name"] = f"{r['scope']}::{r['name']}"


def _lines(raw: dict[str, Any], where: dict[int, Location]) -> tuple[Line, ...]:
    """Add up all counters that have the same source line, operation, buffer and width.

    The compiler may generate several instructions for one source line, each with its own counters.

    `raw`: the parsed JSON of a report.
    `where`: a dict from instruction offsets to source lines.
    """
    regions = {r["id"]: r for r in raw["regions"]}
    sums: dict[tuple[Location, str, int, int], Traffic] = defaultdict(Traffic)
    names = [f.name for f in fields(Traffic)]
    for c in raw["counters"]:
        key = (where[c["pc"]], c["operation"], c["region"], c["width"])
        sums[key] += Traffic(**{n: c[n] for n in names})
    return tuple(
        Line(place, operation, regions[region]["name"], bool(regions[region]["shared"]), width, traffic)
        for (place, operation, region, width), traffic in sorted(sums.items(), key=lambda item: item[0])
    )


def _buffers(raw: dict[str, Any], lines: tuple[Line, ...]) -> dict[str, Buffer]:
    """Return the counters of all registered buffers, and of other buffers that kernels accessed, as a dict by buffer
    name.

    Buffers with the same name share one entry of the dict.

    `raw`: the parsed JSON of a report.
    `lines`: the counters of the source lines.
    """
    used = {line.buffer for line in lines}
    found: dict[str, Buffer] = {}
    for r in raw["regions"]:
        name = r["name"]
        if name in found or not (r["registered"] or name in used):
            continue
        mine = [line for line in lines if line.buffer == name]
        loads = [line for line in mine if line.operation != "store"]
        stores = [line for line in mine if line.operation != "load"]
        found[name] = Buffer(
            name, r["bytes"], bool(r["shared"]), _sum(loads), _sum(stores), _widths(loads), _widths(stores),
            r["bytes_read"], r["bytes_written"],
        )  # fmt: skip
    return found


def _sum(lines: Iterable[Line]) -> Traffic:
    return sum((line.traffic for line in lines), Traffic())


def _widths(lines: Iterable[Line]) -> dict[int, int]:
    widths: dict[int, int] = defaultdict(int)
    for line in lines:
        widths[line.width] += line.traffic.accesses
    return dict(sorted(widths.items()))


def _finding(raw: dict[str, Any], where: dict[int, Location]) -> Finding:
    places = []
    for p in raw["places"]:
        given = Location(p["file"], p["line"]) if p["file"] else where.get(p["pc"])
        places.append(Place(p["role"], given, tuple(p["block"]) if "block" in p else None, p["threads"]))
    return Finding(
        raw["kind"], raw["what"], raw["expected"], tuple(places), raw["kernel"], raw["buffer"] or None,
        raw["offset"] if raw["offset"] >= 0 else None, raw["count"], bool(raw["stopped"]),
    )  # fmt: skip
