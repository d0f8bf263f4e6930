"""The hardware figures of the GPU models for which pav2gen generates kernels, with the source of each figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pav2gen.errors import UserError
from pav2gen.wording import did_you_mean, one_of, quoted


@dataclass(frozen=True)
class Target:
    """The hardware figures of one GPU model, such as the warp size and the memory bandwidth.

    An unknown figure is None, or is an assumed number that ``sources`` marks as assumed.

    about: the full name of the GPU model, for messages.
    arch: the name of the GPU architecture in compiler options, such as ``sm_80``.
    warp_size: the number of threads in a warp.
    shared_memory_bytes: the most shared memory, in bytes, that a thread block may use without opting in to more.
    bandwidth_gbps: the bandwidth of a copy in GPU memory, in GB/s; for NVIDIA GPUs, the nominal bandwidth.
    launch_us: the time to launch an empty kernel, in microseconds.
    load_bytes: the number of bytes that a thread should load at once to reach the highest bandwidth.
    sources: maps the name of each figure to the source of the figure.
    peak_bandwidth_gbps: the nominal bandwidth of GPU memory, in GB/s.
    latency_ns: the time in nanoseconds from the issue of a load from GPU memory until the loaded value can be used.
    block_start_ns: the time in nanoseconds to start and end a thread block that does nothing.
    """

    name: str
    about: str
    arch: str
    warp_size: int
    multiprocessors: int | None
    max_threads_per_block: int
    shared_memory_bytes: int
    registers_per_thread: int | None
    threads_per_multiprocessor: int | None
    bandwidth_gbps: float | None
    launch_us: float | None
    load_bytes: int
    sources: Mapping[str, str]
    peak_bandwidth_gbps: float | None = None
    registers_per_multiprocessor: int | None = None
    shared_memory_per_multiprocessor: int | None = None
    latency_ns: float = 600.0
    block_start_ns: float = 400.0

    def with_overrides(self, figures: Mapping[str, object]) -> Target:
        """Return a copy of this target with new values for some hardware figures.

        figures: maps the names of hardware figures, which must be keys of ``FIGURES``, to their new values.

        Raises UserError for an unknown name, and for a value of a wrong type or outside the allowed range.
        """
        for name, value in figures.items():
            if name not in FIGURES:
                raise UserError(f"a target has no figure {quoted(name)}; {did_you_mean(name, FIGURES)}")
            if not FIGURES[name].admits(value):
                raise UserError(f"{name} must be {FIGURES[name].works}, not {quoted(value)}")
        sources = {**self.sources, **dict.fromkeys(figures, "set by the spec")}
        return replace(self, **figures, sources=sources)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Figure:
    """The values that a spec file may set for one hardware figure of a GPU.

    choices: all allowed values; if ``choices`` is empty, every number from ``low`` to ``high`` is allowed.
    whole: whether the value must be an integer.
    """

    low: float = 0
    high: float = 0
    whole: bool = True
    choices: tuple[int, ...] = ()

    def admits(self, value: object) -> bool:
        """Return whether a spec file may set this hardware figure to ``value``."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return value in self.choices if self.choices else self.low <= value <= self.high

    @property
    def works(self) -> str:
        """The allowed values in words, for error messages, such as ``a whole number from 1 to 1024``."""
        if self.choices:
            return one_of(self.choices)
        return f"a {'whole ' if self.whole else ''}number from {self.low:g} to {self.high:g}"


#: Maps the name of each figure that a spec may override to the values that the spec may give to it.
FIGURES: Mapping[str, Figure] = {
    "warp_size": Figure(choices=(32, 64)),
    "multiprocessors": Figure(1, 1024),
    "max_threads_per_block": Figure(choices=(256, 512, 1024, 2048, 4096)),
    "shared_memory_bytes": Figure(16 << 10, 256 << 10),
    "registers_per_thread": Figure(16, 1024),
    "threads_per_multiprocessor": Figure(64, 8192),
    "bandwidth_gbps": Figure(1, 100_000, whole=False),
    "peak_bandwidth_gbps": Figure(1, 100_000, whole=False),
    "launch_us": Figure(0.1, 10_000, whole=False),
    "load_bytes": Figure(choices=(4, 8, 16)),
    "registers_per_multiprocessor": Figure(1 << 12, 1 << 20),
    "shared_memory_per_multiprocessor": Figure(16 << 10, 1 << 20),
    "latency_ns": Figure(10, 10_000, whole=False),
    "block_start_ns": Figure(1, 10_000, whole=False),
}

_GUIDE = "CUDA C++ Programming Guide, technical specifications per compute capability"
_STATIC_SHARED = f"{_GUIDE}: 48 KiB without opting in to more"
_LATENCY = "unknown, assumed: 600 ns, the order of a load from HBM or GDDR through two caches"
_BLOCK_START = (
    "unknown, assumed: 400 ns; a GTX 745 was reported to take about 420 clock ticks, on forums.developer.nvidia.com"
)
_WIDEST_LOAD = "CUDA C++ Programming Guide, device memory accesses: the widest load of a thread"


def _nvidia(
    arch: str,
    card: str,
    multiprocessors: int,
    threads_per_multiprocessor: int,
    bandwidth_gbps: float,
    shared_kib: int,
) -> Target:
    """Return the target for NVIDIA GPUs of the compute capability ``arch``, with the hardware figures of the GPU
    ``card``.

    shared_kib: the shared memory of a multiprocessor, in KiB.
    """
    sheet = f"NVIDIA {card} data sheet"
    return Target(
        name=arch,
        about=f"NVIDIA, compute capability {arch[3]}.{arch[4]}, as on the {card}",
        arch=arch,
        warp_size=32,
        multiprocessors=multiprocessors,
        max_threads_per_block=1024,
        shared_memory_bytes=48 << 10,
        registers_per_thread=255,
        threads_per_multiprocessor=threads_per_multiprocessor,
        bandwidth_gbps=bandwidth_gbps,
        launch_us=None,
        load_bytes=16,
        peak_bandwidth_gbps=bandwidth_gbps,
        registers_per_multiprocessor=64 << 10,
        shared_memory_per_multiprocessor=shared_kib << 10,
        sources={
            "arch": _GUIDE,
            "warp_size": _GUIDE,
            "multiprocessors": sheet,
            "max_threads_per_block": _GUIDE,
            "shared_memory_bytes": _STATIC_SHARED,
            "registers_per_thread": _GUIDE,
            "threads_per_multiprocessor": _GUIDE,
            "bandwidth_gbps": f"{sheet}: nominal, not measured",
            "launch_us": "unknown: in no data sheet, and not measured",
            "load_bytes": _WIDEST_LOAD,
            "peak_bandwidth_gbps": sheet,
            "registers_per_multiprocessor": _GUIDE,
            "shared_memory_per_multiprocessor": _GUIDE,
            "latency_ns": _LATENCY,
            "block_start_ns": _BLOCK_START,
        },
    )


_BI_V100 = Target(
    name="bi-v100",
    about="Iluvatar BI-V100 (Tiangai 100)",
    arch="ivcore10",
    warp_size=64,
    multiprocessors=16,
    max_threads_per_block=4096,
    shared_memory_bytes=48 << 10,
    registers_per_thread=None,
    threads_per_multiprocessor=None,
    bandwidth_gbps=584.2,
    launch_us=6.2,
    load_bytes=8,
    peak_bandwidth_gbps=1228.8,
    sources={
        "arch": "FlagTree, Iluvatar backend: compute capability 7.0 is ivcore10",
        "warp_size": "the SDK's cutlass.h, NUM_THREADS_PER_WARP; warpSize as read on a card",
        "multiprocessors": "ixsmi on a card; 16 x 768 lanes x 2 x 1.5 GHz is the advertised 37 TFLOPS",
        "max_threads_per_block": "the vendor's guide to the card",
        "shared_memory_bytes": "design bound: the card's limit is not established (a report has 50 KiB static at work)",
        "registers_per_thread": "unknown: not published",
        "threads_per_multiprocessor": "unknown: not published",
        "bandwidth_gbps": "measured on a card by a third party: a copy of 128 MB",
        "launch_us": "measured on a card by a third party: an empty kernel",
        "load_bytes": "chosen, not measured: of 4 and 16 bytes, one is faster on its sibling, the other in one report",
        "peak_bandwidth_gbps": "4096 bit x 1.2 GHz x 2, announced as 1.2 TB/s",
        "registers_per_multiprocessor": "unknown: not published",
        "shared_memory_per_multiprocessor": "unknown: not published",
        "latency_ns": _LATENCY,
        "block_start_ns": _BLOCK_START,
    },
)

_MR_V100 = Target(
    name="mr-v100",
    about="Iluvatar MR-V100 (Zhikai 100)",
    arch="ivcore11",
    warp_size=64,
    multiprocessors=16,
    max_threads_per_block=4096,
    shared_memory_bytes=48 << 10,
    registers_per_thread=None,
    threads_per_multiprocessor=None,
    bandwidth_gbps=None,
    launch_us=None,
    load_bytes=4,
    peak_bandwidth_gbps=None,
    sources={
        "arch": "FlagTree, Iluvatar backend: compute capability 7.1 is ivcore11",
        "warp_size": "the SDK's cutlass.h, NUM_THREADS_PER_WARP; 64-lane shuffles reported exact on a card",
        "multiprocessors": "deviceQuery of a card, as reported by a third party",
        "max_threads_per_block": "deviceQuery of a card, as reported by a third party",
        "shared_memory_bytes": "design bound, as on the BI-V100; deviceQuery reports 128 KiB",
        "registers_per_thread": "unknown: not published",
        "threads_per_multiprocessor": "unknown: not published",
        "bandwidth_gbps": "unknown: measured only on the BI-V150, of the same architecture (676 GB/s of 819 for a die)",
        "launch_us": "unknown: not measured",
        "load_bytes": "measured on the BI-V150 by a third party: 676 GB/s by 4 bytes, 589 by 8, 373 by 16",
        "peak_bandwidth_gbps": "unknown: not published",
        "registers_per_multiprocessor": "unknown: not published",
        "shared_memory_per_multiprocessor": "unknown: not published",
        "latency_ns": _LATENCY,
        "block_start_ns": _BLOCK_START,
    },
)

#: Maps the name of each target to the target.
TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        _BI_V100,
        _MR_V100,
        _nvidia("sm_70", "V100 SXM2", 80, 2048, 900, 96),
        _nvidia("sm_75", "T4", 40, 1024, 320, 64),
        _nvidia("sm_80", "A100 80 GB SXM", 108, 2048, 2039, 164),
        _nvidia("sm_90", "H100 SXM", 132, 2048, 3350, 228),
    )
}


def find(name: str) -> Target:
    """Return the target GPU called ``name``. Raises UserError if no target has this name."""
    if name not in TARGETS:
        raise UserError(f"unknown target {quoted(name)}; {did_you_mean(name, TARGETS)}")
    return TARGETS[name]
