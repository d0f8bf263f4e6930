"""Estimates how many thread blocks of a CUDA decode kernel are resident on a multiprocessor at the same time.

The module also estimates the bytes in flight: bytes that were requested from memory and have not arrived yet. By
Little's law, a multiprocessor uses its full bandwidth if (bandwidth × latency of a load) bytes are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from pav2gen.family.target import Target
from pav2gen.family.variant import Variant
from pav2gen.plan.cuda_geometry import Geometry

#: The constants of ``estimated_registers``. A thread is estimated to need BASE_REGISTERS registers, plus one for each
#: of its accumulators. The first MOST_OVERLAPPED accumulators count twice, because a compiler uses free registers to
#: overlap more loads. A test compares the estimate with ptxas for sm_75: it differs by at most 40 registers for each
#: kernel of the committed specs.
BASE_REGISTERS, MOST_OVERLAPPED = 56, 40

#: The largest number of registers that a compiler can assign to a thread.
MOST_REGISTERS = 255

#: The number of registers of a multiprocessor, and the largest number of threads on it, that are assumed if the target
#: does not state them. NVIDIA's GPUs have these numbers.
ASSUMED_REGISTERS, ASSUMED_THREADS = 64 << 10, 2048


@dataclass(frozen=True)
class Occupancy:
    """The number of thread blocks that are resident on one multiprocessor, and the number of bytes in flight.

    Bytes in flight were requested from memory and have not arrived yet. All bytes are for one multiprocessor.

    blocks: the number of thread blocks that are resident at the same time.
    limited_by: the resource that limits ``blocks``: "registers", "shared memory" or "threads".
    key_bytes: the bytes in flight while the kernel reads keys.
    value_bytes: the bytes in flight while the kernel reads values.
    needed: the bytes in flight that full bandwidth needs, or None if the bandwidth of the GPU is unknown.
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
        """``bytes_in_flight`` divided by ``needed``, or None if ``needed`` is None.

        A share of 1 or more is enough for full bandwidth.
        """
        return None if self.needed is None else self.bytes_in_flight / self.needed

    def figures(self) -> dict[str, int | float | str | None]:
        """Return the values that ``pav2gen list`` prints about occupancy, as a dict from column name to value."""
        return {
            "resident_blocks": self.blocks,
            "kib_in_flight": round(self.bytes_in_flight / 1024, 1),
            "in_flight_share": None if self.share is None else round(self.share, 2),
        }


def occupancy(v: Variant, g: Geometry, shared_bytes: int, target: Target, registers: int | None = None) -> Occupancy:
    """Estimate how many thread blocks of a CUDA decode kernel are resident on one multiprocessor of the GPU ``target``.

    v: the properties of the kernel, such as its head size and dtype.
    g: the layout of the kernel's thread blocks.
    shared_bytes: the bytes of shared memory per thread block.
    registers: the number of registers per thread that a compiler reported, or None to use an estimate.
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
    """Return how many bytes one multiprocessor must have in flight to use its full share of the memory bandwidth.

    Bytes in flight were requested from memory and have not arrived yet. The result is None if the bandwidth or the
    number of multiprocessors of the GPU ``target`` is unknown.
    """
    if target.bandwidth_gbps is None or target.multiprocessors is None:
        return None
    return round(target.bandwidth_gbps / target.multiprocessors * target.latency_ns)


def rows_per_thread(v: Variant, g: Geometry) -> int:
    """Return the number of rows of V from which a thread loads at the same time.

    A row of V holds one of the ``head_size`` elements of the value, for every token of a page.
    """
    return -(-v.head_size * g.row_lanes // g.threads)


def accumulators(v: Variant, g: Geometry) -> int:
    """Return the largest number of float32 accumulators that a thread needs at the same time.

    A thread accumulates scores and elements of the output. If a thread block processes its partition in several steps,
    each thread keeps its output accumulators while computing scores.
    """
    values = rows_per_thread(v, g) * g.heads
    held = values if g.step < v.partition_size else 0
    return max(values, held + g.runs * g.heads)


def estimated_registers(v: Variant, g: Geometry) -> int:
    """Estimate the number of registers per thread of a kernel that was not compiled yet.

    The estimate is rounded up to a multiple of 8, because the hardware assigns registers in groups of 8. The estimate
    is at most 255, the largest number of registers that a thread can have.
    """
    held = accumulators(v, g)
    estimate = BASE_REGISTERS + held + min(held, MOST_OVERLAPPED)
    return min(MOST_REGISTERS, -(-estimate // 8) * 8)
