"""The report of a session: the faults that the checks detected, and counters of launches and memory traffic."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from .symbols import Location, locate
from .table import render_report


class FindingsError(AssertionError):
    """A kernel has faults that the checks detected. The message lists them."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        super().__init__("\n".join(str(f) for f in findings))


@dataclass(frozen=True)
class Place:
    """One memory access or call that is part of a fault: its role, its source line, and the threads that made it."""

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
    """One fault of a kernel, as the checks detected it.

    `kind`: the type of the fault, such as "race". `what`: a description of the fault. `expected`: what the kernel
    should have done. `places`: the memory accesses or calls that are part of the fault.
    `buffer`, `offset`: the buffer and the byte in it, or None. `count`: how often the fault was seen. `stopped`:
    whether the launch was stopped at the fault.
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
        """The source lines of all accesses and calls that are part of the fault."""
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
    """Counters of memory traffic.

    `accesses`: the number of warp-wide accesses. `lanes`: the number of accesses of single lanes. `bytes`: the number
    of bytes that the lanes requested. `sectors_32`, `sectors_64`, `sectors_128`: the number of global memory sectors of
    32, 64 or 128 bytes that the warps touched. `passes`: the number of cycles in which the 32 banks of shared memory
    serve the accesses. `passes_ideal`: the number of these cycles without bank conflicts.
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
    """The traffic between one source line and one buffer, for one operation and one access width.

    `operation`: "load", "store" or "atomic". `shared`: whether the buffer is in shared memory. `width`: the number of
    bytes that a lane accesses at once.
    """

    location: Location
    operation: str
    buffer: str
    shared: bool
    width: int
    traffic: Traffic


@dataclass(frozen=True)
class Buffer:
    """The traffic of a registered buffer, a shared array or a global variable.

    `bytes`: the buffer's size in bytes. `loads`, `stores`: the counters of its loads and stores. An atomic
    operation counts as a load and a store.
    `load_widths`, `store_widths`: the number of warp-wide accesses for each access width in bytes. `bytes_read`,
    `bytes_written`: the number of bytes of global memory that were accessed. Each byte counts once.
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
        """The bytes that loads requested, divided by the number of distinct bytes loaded."""
        return self.loads.bytes / self.bytes_read if self.bytes_read else 0.0


@dataclass(frozen=True)
class Kernel:
    """Counters over all launches of a kernel, and the shared memory that one block uses.

    `collectives`: the number of warp-wide calls, such as shuffles. `static_shared`, `dynamic_shared`: the shared memory
    of one block, in bytes.
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
    """Counters over all launches of a session.

    `approximate`: True if some counts of warp-wide accesses are too large. This happens if the lanes of a warp run
    apart for more accesses than the runtime remembers. It then counts one warp-wide access as several.
    `switches`: the number of switches between simulated threads. `local_bytes`: the traffic of local memory, in bytes.
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
    """The faults (findings) and counters of a session. `str()` returns all of them as text."""

    warp_size: int
    checked: bool
    totals: Totals
    kernels: tuple[Kernel, ...]
    buffers: dict[str, Buffer]
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...]

    def raise_for_findings(self) -> None:
        """Raise FindingsError if the checks detected a fault."""
        if self.findings:
            raise FindingsError(self.findings)

    def table(self) -> str:
        """The counters as plain-text tables, without the faults."""
        return render_report(self)

    def __str__(self) -> str:
        found = "\n".join(str(f) for f in self.findings) or "no findings"
        return f"{found}\n\n{self.table()}"


def read_report(text: bytes, library: str | None = None) -> Report:
    """Parse the JSON report of the runtime.

    `library`: the path of the library file with the kernels. The default is the path that the report contains.
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
    """If several variables share a name, put the name of its function before each of them, as in `reduce::sums`."""
    used = {c["region"] for c in raw["counters"]}
    regions = [r for r in raw["regions"] if r["id"] in used or r["registered"]]
    names = Counter(r["name"] for r in regions)
    for r in regions:
        if names[r["name"]] > 1 and r["scope"]:
            r["name"] = f"{r['scope']}::{r['name']}"


def _lines(raw: dict[str, Any], where: dict[int, Location]) -> tuple[Line, ...]:
    """Add up all counters of the same source line, operation, buffer and width.

    A source line can have several counters, because the compiler can duplicate code.
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
    """The traffic of all registered buffers and of all other memory that was accessed, by name.

    Arrays that have the same name are combined.
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
