"""Chooses the layout of a CUDA decode kernel: threads, load widths, shared memory, and query heads per thread block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pav2gen.family.target import Target
from pav2gen.family.variant import Variant
from pav2gen.plan.cuda_geometry import WIDEST_WARP, Geometry
from pav2gen.plan.cuda_hooks import CudaHooks
from pav2gen.plan.cuda_picture import picture
from pav2gen.plan.occupancy import Occupancy, accumulators, bytes_needed, estimated_registers, occupancy

#: The most shared memory of a thread block. The limit of a BI-V100 is not known; 48 KiB is this project's own limit.
SHARED_LIMIT = 48 << 10

#: The number of threads that should be resident on a multiprocessor to hide latency: 8 warps of 32 lanes, or 4 of 64.
RESIDENT_THREADS = 256

#: The most float32 accumulators of a thread that a compiler can keep in registers. With 142 accumulators, ptxas for
#: sm_75 reports 252 registers, and a thread can have at most 255.
MOST_ACCUMULATORS = 120

#: The number of bytes in flight that a multiprocessor is assumed to need, if the target's bandwidth is not known.
ASSUMED_BYTES = 24 << 10

#: The number of registers that a thread needs in addition to its accumulators: for addresses, loaded words, unpacked
#: floats and loop counters. With 48 accumulators, ptxas for sm_75 reports 106 such registers. With more accumulators,
#: the compiler reuses some of them.
OTHER_REGISTERS = 96

#: The most runs of tokens that a warp scores at the same time. The warp issues the loads of all runs before it uses a
#: key.
MOST_RUNS = 4

#: The most score accumulators of a thread: runs of tokens times query heads.
MOST_SCORES = 32

#: The most floats that a thread unpacks at the same time.
UNPACKED_FLOATS = 32

#: The number of bytes in a sector of memory, on every target. A load of values reads whole sectors of each row.
SECTOR = 32

#: A warp scores several runs of tokens at the same time only if a step has at least this many tokens for each run of
#: each warp.
TOKENS_PER_RUN = 16

#: The plan chooses a step of fewer tokens than this only if no longer step fits, because the thread block waits at four
#: barriers in each step.
SHORT_STEP = 256

#: The number of grades per factor of 2 in bytes in flight. Plans with the same grade count as equally good (see
#: ``_grade``).
GRADES = 3

#: The settings of a spec's ``cuda`` and the values that each may have. ``tokens`` sets ``Geometry.runs``.
CHOICES: Mapping[str, tuple[int, ...]] = {
    "threads": (64, 128, 256, 512),
    "step": (64, 128, 256, 512, 1024, 2048),
    "tokens": (1, 2, 4),
}

#: The number of registers of a multiprocessor, on NVIDIA's cards of compute capability 7.0 to 9.0. Tests compare plans
#: with ptxas.
REGISTER_FILE = 64 << 10

#: STORED: dtype -> the struct of runtime/cuda/pav2_device.cuh that decodes its elements. SCALARS: dtype -> CUDA type.
STORED = {
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "Float32",
    "fp8_e4m3": "E4M3",
    "fp8_e5m2": "E5M2",
    "int8": "Int8",
}
SCALARS = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}


@dataclass(frozen=True)
class CudaPlan:
    """The plan of a CUDA decode kernel: its layout, and the resources and counters that follow from the layout."""

    variant: Variant
    geometry: Geometry
    target: Target

    @property
    def scalar(self) -> str:
        """The CUDA type of query, out and tmp_out."""
        return SCALARS[self.variant.dtype]

    @property
    def stored(self) -> str:
        """The struct of runtime/cuda/pav2_device.cuh that decodes elements of the cache."""
        v = self.variant
        return STORED[v.dtype if v.kv_cache_dtype == "auto" else v.kv_cache_dtype]

    @property
    def blocks_per_group(self) -> int:
        """The number of thread blocks that the query heads of one KV head are divided over. Every one of these thread
        blocks reads the cache.
        """
        return -(-self.variant.gqa_ratio // self.geometry.heads)

    @property
    def steps(self) -> int:
        """The number of steps in which a thread block processes its partition."""
        return self.variant.partition_size // self.geometry.step

    @property
    def uneven(self) -> bool:
        """Whether the query heads of a KV head do not divide evenly, so that the last of their thread blocks has fewer
        heads.
        """
        return self.variant.gqa_ratio % self.geometry.heads != 0

    @property
    def head_count(self) -> str:
        """The CUDA text for the number of query heads of a thread block."""
        return "at.heads" if self.uneven else "kBlockHeads"

    @property
    def lanes_without_grain(self) -> bool:
        """Whether some lanes of a 64-lane warp are idle while keys are loaded.

        Lanes are idle if the warp could load more 16-byte groups of each key at once than a key has.
        """
        lanes = WIDEST_WARP * self.geometry.key_words // 4
        return lanes // min(self.variant.block_size, lanes) > self.variant.head_size // self.variant.grain

    @property
    def rows_may_end(self) -> bool:
        """Whether some threads are idle in the last round of reading V, because no row of V is left for them."""
        return self.variant.head_size * self.geometry.row_lanes % self.geometry.threads != 0

    @property
    def tile(self) -> int:
        """The number of tokens of a page that all threads together read in one load of V."""
        return self.geometry.row_lanes * self.geometry.value_words * (4 // self.variant.cache_item_bytes)

    @property
    def shared_bytes(self) -> int:
        """Bytes of static shared memory of the kernel that computes partitions. The reduction kernel is not
        included.
        """
        return shared_bytes(self.variant, self.geometry.heads, self.geometry.step)

    @cached_property
    def occupancy(self) -> Occupancy:
        """The estimated occupancy of a multiprocessor, with an estimate of the registers per thread."""
        return occupancy(self.variant, self.geometry, self.shared_bytes, self.target)

    @cached_property
    def hooks(self) -> CudaHooks:
        """The code between the product q·k and the softmax, which changes scores and masks keys."""
        return CudaHooks(self.variant)

    @property
    def picture(self) -> list[str]:
        """A text picture for the comment at the top of a CUDA source. The picture shows which thread loads which part
        of a page.
        """
        return picture(self.variant, self.geometry)

    @property
    def page_bytes(self) -> int:
        """Bytes of K in a page, for one KV head. V has as many bytes as K."""
        return page_bytes(self.variant)

    @property
    def max_registers(self) -> int:
        """The most registers per thread with which ``RESIDENT_THREADS`` threads can be resident on a multiprocessor."""
        return min(255, REGISTER_FILE // max(self.geometry.threads, RESIDENT_THREADS))

    def kv_bytes(self, pages: int, kv_heads: int) -> int:
        """Bytes of K and V that one call loads, if its sequences have ``pages`` pages in total.

        Each of the ``blocks_per_group`` thread blocks loads all of these pages.
        """
        return 2 * page_bytes(self.variant) * pages * kv_heads * self.blocks_per_group

    def table_bytes(self, pages: int, kv_heads: int) -> int:
        """Bytes of the block tables that one call loads, if its sequences have ``pages`` pages in total."""
        return 4 * pages * kv_heads * self.blocks_per_group

    @property
    def saturating_blocks(self) -> int:
        """The number of thread blocks per multiprocessor that keep enough bytes in flight to use its full bandwidth."""
        needed = self.occupancy.needed or ASSUMED_BYTES
        return -(-needed * self.occupancy.blocks // max(1, self.occupancy.bytes_in_flight))

    @property
    def empty_tokens(self) -> int:
        """The time of a thread block without tokens, as the number of tokens that a multiprocessor processes in this
        time.

        A thread block without tokens only starts, and waits for the load of its sequence's length.
        """
        needed = self.occupancy.needed or ASSUMED_BYTES  # the bytes that arrive in the latency of a load
        idle_ns = self.target.block_start_ns + self.target.latency_ns
        token_bytes = 2 * self.variant.head_size * self.variant.cache_item_bytes
        return math.ceil(needed * idle_ns / self.target.latency_ns / token_bytes)

    def figures(self) -> dict[str, int | float | str | None]:
        """The numbers about the CUDA kernel that ``pav2gen list`` shows, by column."""
        g = self.geometry
        return {
            "threads": g.threads,
            "shared_kib": round(self.shared_bytes / 1024, 1),
            "heads_per_block": g.heads,
            "blocks_per_group": self.blocks_per_group,
            "load_bytes": f"{4 * g.key_words}/{4 * g.value_words}",
            "registers": estimated_registers(self.variant, g),
            "registers_from": "estimate",
            **self.occupancy.figures(),
        }


def page_bytes(v: Variant) -> int:
    """Bytes of K in a page, for one KV head. V has as many bytes as K."""
    return v.head_size * v.block_size * v.cache_item_bytes


def shared_bytes(v: Variant, heads: int, step: int) -> int:
    """Bytes of shared memory per thread block, for ``heads`` query heads and ``step`` tokens per step.

    Shared memory holds the query and the softmax weights in float32, page numbers, and a few numbers per head.
    """
    scalars = 1 + (step < v.partition_size) + v.sinks + len(CudaHooks(v).parameters)
    floats = heads * (v.head_size + step + scalars) + v.pages_per_partition
    return -(-floats * 4 // 16) * 16


def plan_cuda(v: Variant, target: Target, choices: Mapping[str, int]) -> CudaPlan:
    """Choose the layout of a CUDA decode kernel.

    The query heads of one KV head are divided over as few thread blocks as possible, because each block reads the
    cache. Among the layouts with that number of blocks, the first one in the order of ``layouts`` is chosen.
    ``choices`` fixes some settings of ``CHOICES``. ``threads`` is the number of threads per block. ``step`` is the
    number of tokens per step, limited to the partition size. ``tokens`` is the number of runs of tokens that a warp
    scores at the same time; the plan halves this number until the accumulators fit in registers. Raises ValueError if
    the fixed step is shorter than a page.
    """
    for blocks in range(1, v.gqa_ratio + 1):
        heads = -(-v.gqa_ratio // blocks)
        if found := layouts(v, target, heads, choices):
            return found[0]
    raise ValueError(f"no layout of {v.slug} has a step of {choices.get('step')} tokens")


def layouts(v: Variant, target: Target, heads: int, choices: Mapping[str, int]) -> list[CudaPlan]:
    """The possible layouts with ``heads`` query heads per thread block, the best first.

    Five criteria decide the order, the most important one first: loads of V at most as wide as the target's
    ``load_bytes``; steps of at least ``SHORT_STEP`` tokens, or of a whole partition; the higher grade of the bytes in
    flight (see ``_grade``); longer steps; fewer threads.
    """
    plans = [CudaPlan(v, g, target) for g in dict.fromkeys(_candidates(v, target, heads, choices))]
    plans = [p for p in plans if p.shared_bytes <= min(SHARED_LIMIT, target.shared_memory_bytes)]
    needed = bytes_needed(target) or ASSUMED_BYTES

    def rank(p: CudaPlan) -> tuple[bool, bool, int]:
        wide = 4 * p.geometry.value_words > target.load_bytes
        short = p.geometry.step < min(SHORT_STEP, v.partition_size)
        return wide, short, -_grade(p.occupancy.bytes_in_flight, needed)

    return sorted(plans, key=rank)


def _grade(in_flight: int, needed: int) -> int:
    """The grade of a plan with ``in_flight`` bytes in flight on a multiprocessor. With at least ``needed`` bytes, the
    grade is 0. It is lower by ``GRADES`` for each factor of 2 that is missing.
    """
    return round(GRADES * math.log2(min(1.0, max(in_flight, 1) / needed)))


def _candidates(v: Variant, target: Target, heads: int, choices: Mapping[str, int]) -> Iterator[Geometry]:
    """The geometries of a thread block with which all accumulators fit in registers. Longer steps come first, then
    fewer threads.
    """
    key_words = _key_words(v, target.load_bytes)
    for step in _steps(v, choices.get("step")):
        for threads in _threads(v, target, choices.get("threads")):
            for value_words, row_lanes in _rows(v, threads, target.load_bytes):
                g = Geometry(threads, heads, step, choices.get("tokens", MOST_RUNS), key_words, value_words, row_lanes)
                while g.runs > 1 and not _runs_fit(v, g):
                    g = replace(g, runs=g.runs // 2)
                if accumulators(v, g) <= most_accumulators(threads):
                    yield g


def most_accumulators(threads: int) -> int:
    """The most accumulators per thread that fit in registers, in a thread block of ``threads`` threads."""
    return min(MOST_ACCUMULATORS, REGISTER_FILE // threads - OTHER_REGISTERS)


def _threads(v: Variant, target: Target, chosen: int | None) -> tuple[int, ...]:
    """The numbers of threads to try. If the spec fixes the number (``chosen``), this is the only one. Otherwise, these
    are 64 for pages with less than 512 bytes of K, and 128, 256 and 512 for larger pages.
    """
    if chosen:
        return (chosen,)
    counts = (64,) if page_bytes(v) < 512 else (128, 256, 512)
    return tuple(threads for threads in counts if threads <= target.max_threads_per_block)


def _runs_fit(v: Variant, g: Geometry) -> bool:
    """Whether a warp can score ``g.runs`` runs of tokens at the same time.

    The accumulators and the unpacked floats must fit in registers, and each warp must have work in every step.
    """
    unpacked = g.runs * g.key_words * 4 // v.cache_item_bytes
    busy = g.runs * TOKENS_PER_RUN * (g.threads // WIDEST_WARP) <= g.step
    fits = g.runs * g.heads <= MOST_SCORES and accumulators(v, g) <= most_accumulators(g.threads)
    return fits and unpacked <= UNPACKED_FLOATS and busy


def _steps(v: Variant, chosen: int | None) -> list[int]:
    """The numbers of tokens per step to try. If the spec fixes the number (``chosen``), this is the only one (at most
    the partition size), or none if it is shorter than a page. Otherwise, these are the partition size, its half, and so
    on down to 64 tokens or a page.
    """
    if chosen:
        return [min(chosen, v.partition_size)] if chosen >= v.block_size else []
    steps = [v.partition_size]
    while steps[-1] // 2 >= max(v.block_size, 64):
        steps.append(steps[-1] // 2)
    return steps


def _key_words(v: Variant, load_bytes: int) -> int:
    """The number of 32-bit words that a thread reads with one load of K. The choice is the widest load with which no
    lane of a 64-lane warp is idle, or the widest load if there is no such load.
    """
    widths = [width for width in (16, 8, 4) if width <= load_bytes]
    whole = [width for width in widths if page_bytes(v) // width % WIDEST_WARP == 0]
    return (whole or widths)[0] // 4


def _rows(v: Variant, threads: int, load_bytes: int) -> list[tuple[int, int]]:
    """The possible pairs of (32-bit words per load of V, threads that read one row of V side by side), the best first.

    Pairs with which no thread is idle come before others. Among these, loads of at most the target's ``load_bytes``
    come before wider loads. The threads of a row together read the whole row, or at least one sector of the row.
    """
    row = v.block_size * v.cache_item_bytes
    widths = [w for w in (16, 8, 4) if w <= min(load_bytes, row)] + [w for w in (16,) if load_bytes < w <= row]
    options = []
    for width in widths:
        lanes = row // width
        while lanes >= 1 and (lanes * width >= SECTOR or lanes == row // width):
            if lanes <= 32:
                options.append((width // 4, lanes))
            lanes //= 2
    whole = [option for option in options if v.head_size * option[1] % threads == 0]
    return whole + [option for option in options if option not in whole]
