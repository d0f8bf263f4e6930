"""Estimates the occupancy of a multiprocessor: its resident thread blocks, and how many bytes of their loads are in
flight.

By Little's law, full bandwidth needs (bandwidth × latency) bytes in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from pav2gen.family.target import Target
from pav2gen.family.variant import Variant
from pav2gen.plan.cuda_geometry import Geometry

#: The estimate of the registers per thread is BASE_REGISTERS, plus one per accumulator. The first MOST_OVERLAPPED
#: accumulators count twice, because with few accumulators a compiler overlaps more work. A test checks that, for each
#: kernel of the committed specs, the estimate differs by at most 40 registers from ptxas for sm_75.
BASE_REGISTERS, MOST_OVERLAPPED = 56, 40

#: The most registers that a compiler assigns to a thread.
MOST_REGISTERS = 255

#: The numbers of registers and of threads of a multiprocessor, if the target's figures are not known. NVIDIA's cards
#: have these figures.
ASSUMED_REGISTERS, ASSUMED_THREADS = 64 << 10, 2048


@dataclass(frozen=True)
class Occupancy:
    """The resident thread blocks of a multiprocessor, and the bytes of their loads that are in flight.

    blocks: the number of resident thread blocks.
    limited_by: the resource that limits this number.
    key_bytes: bytes in flight while keys are read.
    value_bytes: bytes in flight while values are read.
    needed: bytes in flight that full bandwidth needs; None if the target's bandwidth is not known.
    """

    blocks: int
    limited_by: str
    key_bytes: int
    value_bytes: int
    needed: int | None

    @property
    def bytes_in_flight(self) -> int:
        """The smaller of ``key_bytes`` and ``value_bytes``."""
        return min(self.key_bytes, self.value_bytes)

    @property
    def share(self) -> float | None:
        """Bytes in flight divided by the bytes that full bandwidth needs. None if the target's bandwidth is not
        known.
        """
        return None if self.needed is None else self.bytes_in_flight / self.needed

    def figures(self) -> dict[str, int | float | str | None]:
        """The numbers about the occupancy that ``pav2gen list`` shows, by column."""
        return {
            "resident_blocks": self.blocks,
            "kib_in_flight": round(self.bytes_in_flight / 1024, 1),
            "in_flight_share": None if self.share is None else round(self.share, 2),
        }


def occupancy(v: Variant, g: Geometry, shared_bytes: int, target: Target, registers: int | None = None) -> Occupancy:
    """Estimate the occupancy of a decode kernel. ``registers`` is the number per thread from a compiler; None means an
    estimate.
    """
    per_thread = estimated_registers(v, g) if registers is None else registers
    limits = {
        "registers": (target.registers_per_multiprocessor or ASSUMED_REGISTERS) // (per_thread * g.threads),
        "shared memory": (target.shared_memory_per_multiprocessor or target.shared_memory_bytes) // shared_bytes,
        "threads": (target.threads_per_multiprocessor or ASSUMED_THREADS) // g.threads,
    }
    limited_by = min(limits, key=lambda name: limits[name])
    blocks = max(1, limits[limited_by])  # at least 1: a block that compiles can run
    key_bytes = g.threads * g.runs * 4 * g.key_words
    value_bytes = rows_per_thread(v, g) * g.threads * 4 * g.value_words
    return Occupancy(blocks, limited_by, blocks * key_bytes, blocks * value_bytes, bytes_needed(target))


def bytes_needed(target: Target) -> int | None:
    """Bytes in flight that one multiprocessor needs at full bandwidth. None if the target's bandwidth is not known."""
    if target.bandwidth_gbps is None or target.multiprocessors is None:
        return None
    return round(target.bandwidth_gbps / target.multiprocessors * target.latency_ns)


def rows_per_thread(v: Variant, g: Geometry) -> int:
    """The number of rows of V that a thread loads at the same time. A row is one element of the head for all tokens of
    a page.
    """
    return -(-v.head_size * g.row_lanes // g.threads)


def accumulators(v: Variant, g: Geometry) -> int:
    """The most float32 accumulators of a thread at any time.

    If a partition is processed in several steps, the accumulators of values stay live while the next scores are
    computed.
    """
    values = rows_per_thread(v, g) * g.heads
    held = values if g.step < v.partition_size else 0
    return max(values, held + g.runs * g.heads)


def estimated_registers(v: Variant, g: Geometry) -> int:
    """Estimate the registers per thread before compilation: a multiple of 8, because the hardware assigns registers by
    eights.
    """
    held = accumulators(v, g)
    estimate = BASE_REGISTERS + held + min(held, MOST_OVERLAPPED)
    return min(MOST_REGISTERS, -(-estimate // 8) * 8)
