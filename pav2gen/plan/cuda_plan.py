"""Chooses the layout of a CUDA decode kernel: how the threads of a thread block divide the work.

The layout determines the number of threads and query heads per thread block, the width of loads, and the use of shared
memory.
"""

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

#: The largest size of shared memory per thread block, in bytes. The real limit of a BI-V100 is not known; 48 KiB is a
#: limit that pav2gen sets.
SHARED_LIMIT = 48 << 10

#: The number of threads that should be resident on a multiprocessor, so that some of them compute while others wait for
#: memory. These are 8 warps of 32 lanes, or 4 warps of 64 lanes.
RESIDENT_THREADS = 256

#: The largest number of float32 accumulators of a thread that a compiler is assumed to keep in registers. For a kernel
#: with 142 accumulators, ptxas for sm_75 reports 252 registers, and a thread can have at most 255.
MOST_ACCUMULATORS = 120

#: The number of bytes in flight (see ``plan.occupancy``) that a multiprocessor is assumed to need for full bandwidth,
#: if the bandwidth of the target is not known.
ASSUMED_BYTES = 24 << 10

#: The number of registers that a thread needs in addition to its accumulators: for addresses, loaded words, unpacked
#: floats and loop counters. For a kernel with 48 accumulators, ptxas for sm_75 reports 106 such registers. In kernels
#: with more accumulators, the compiler keeps this number smaller.
OTHER_REGISTERS = 96

#: The largest number of runs that a warp scores at the same time. A run is a group of consecutive tokens. The warp
#: issues the loads of the keys of all these runs before it uses the first key.
MOST_RUNS = 4

#: The largest number of score accumulators of a thread. A thread has one for each pair of a run and a query head.
MOST_SCORES = 32

#: The largest number of key elements that a thread holds as float32 at the same time.
UNPACKED_FLOATS = 32

#: The number of bytes in a sector of memory, on every target. The loads of V read whole sectors of each row of V.
SECTOR = 32

#: A warp scores several runs at the same time only if each step has at least this many tokens for each of these runs,
#: in each warp of the thread block.
TOKENS_PER_RUN = 16

#: A step of fewer tokens than this is a short step. The plan chooses a short step only if no longer step fits, because
#: a thread block waits at four barriers in each step.
SHORT_STEP = 256

#: The grade of a layout rates its bytes in flight (see ``_grade``). It falls by this number if the bytes in flight are
#: halved. For layouts with the same grade, the bytes in flight count as equal.
GRADES = 3

#: A dict from each setting in the section ``cuda`` of a spec to the values that the spec may give it. ``threads`` and
#: ``step`` set the fields of ``Geometry`` with these names. ``tokens`` sets ``Geometry.runs``.
CHOICES: Mapping[str, tuple[int, ...]] = {
    "threads": (64, 128, 256, 512),
    "step": (64, 128, 256, 512, 1024, 2048),
    "tokens": (1, 2, 4),
}

#: The number of 32-bit registers of a multiprocessor, on NVIDIA's GPUs of compute capability 7.0 to 9.0. Tests compile
#: kernels with ptxas, to check the plans against its reports of registers.
REGISTER_FILE = 64 << 10

#: STORED is a dict from the dtype of the KV cache to the struct of runtime/cuda/pav2_device.cuh that decodes its
#: elements. SCALARS is a dict from a dtype to its CUDA type.
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
    """The layout of a CUDA decode kernel, the resources that the kernel needs, and the bytes that the kernel reads."""

    variant: Variant
    geometry: Geometry
    target: Target

    @property
    def scalar(self) -> str:
        """The CUDA type of the elements of the tensors query, out and tmp_out."""
        return SCALARS[self.variant.dtype]

    @property
    def stored(self) -> str:
        """The name of the struct in runtime/cuda/pav2_device.cuh that decodes elements of the KV cache."""
        v = self.variant
        return STORED[v.dtype if v.kv_cache_dtype == "auto" else v.kv_cache_dtype]

    @property
    def blocks_per_group(self) -> int:
        """The number of thread blocks that share the query heads of one KV head.

        Each thread block that shares a KV head reads the head's keys and values from the KV cache.
        """
        return -(-self.variant.gqa_ratio // self.geometry.heads)

    @property
    def steps(self) -> int:
        """The number of steps in which a thread block processes its partition, each with ``Geometry.step`` tokens."""
        return self.variant.partition_size // self.geometry.step

    @property
    def uneven(self) -> bool:
        """Whether the last of the thread blocks that share one KV head computes fewer query heads than the others."""
        return self.variant.gqa_ratio % self.geometry.heads != 0

    @property
    def head_count(self) -> str:
        """The CUDA code for the number of query heads that a thread block computes."""
        return "at.heads" if self.uneven else "kBlockHeads"

    @property
    def lanes_without_grain(self) -> bool:
        """Whether some lanes of a 64-lane warp are idle while the warp loads keys.

        A key consists of 16-byte groups. Lanes are idle if a warp can load more 16-byte groups of each key at once than
        a key has.
        """
        lanes = WIDEST_WARP * self.geometry.key_words // 4
        return lanes // min(self.variant.block_size, lanes) > self.variant.head_size // self.variant.grain

    @property
    def rows_may_end(self) -> bool:
        """Whether some threads are idle in the last round of reading V.

        In each round, the thread block reads several rows of V. A row of V holds one of the ``head_size`` elements of
        the value, for every token of a page.
        """
        return self.variant.head_size * self.geometry.row_lanes % self.geometry.threads != 0

    @property
    def tile(self) -> int:
        """The number of tokens that the threads assigned to one row of V read with one load each.

        A row of V holds one of the ``head_size`` elements of the value, for every token of a page.
        """
        return self.geometry.row_lanes * self.geometry.value_words * (4 // self.variant.cache_item_bytes)

    @property
    def shared_bytes(self) -> int:
        """The bytes of static shared memory per thread block of the kernel that computes partitions.

        The number excludes the shared memory of the reduction kernel, which merges the results of the partitions.
        """
        return shared_bytes(self.variant, self.geometry.heads, self.geometry.step)

    @cached_property
    def occupancy(self) -> Occupancy:
        """The estimated number of thread blocks that are resident on a multiprocessor, and the number of bytes in
        flight.

        Bytes in flight were requested from memory and have not arrived yet. The estimate uses an estimated number of
        registers per thread.
        """
        return occupancy(self.variant, self.geometry, self.shared_bytes, self.target)

    @cached_property
    def hooks(self) -> CudaHooks:
        """The generated code that changes scores and masks keys, between the product q·k and the softmax."""
        return CudaHooks(self.variant)

    @property
    def picture(self) -> list[str]:
        """Lines of text that show which thread loads which part of a page.

        The comment at the top of the CUDA source contains the picture.
        """
        return picture(self.variant, self.geometry)

    @property
    def page_bytes(self) -> int:
        """The size in bytes of all keys in a page, for one KV head.

        The values in a page have the same size as the keys.
        """
        return page_bytes(self.variant)

    @property
    def max_registers(self) -> int:
        """The most registers per thread with which ``RESIDENT_THREADS`` threads fit on a multiprocessor."""
        return min(255, REGISTER_FILE // max(self.geometry.threads, RESIDENT_THREADS))

    def kv_bytes(self, pages: int, kv_heads: int) -> int:
        """Return the bytes of keys and values that all thread blocks of one call together load.

        The thread blocks load each page ``blocks_per_group`` times for each KV head.

        pages: the number of pages of all sequences together.
        kv_heads: the number of KV heads.
        """
        return 2 * page_bytes(self.variant) * pages * kv_heads * self.blocks_per_group

    def table_bytes(self, pages: int, kv_heads: int) -> int:
        """Return the bytes of block tables that all thread blocks of one call together load.

        pages: the number of pages of all sequences together.
        kv_heads: the number of KV heads.
        """
        return 4 * pages * kv_heads * self.blocks_per_group

    @property
    def saturating_blocks(self) -> int:
        """The number of resident thread blocks that a multiprocessor needs to use its full share of the bandwidth."""
        needed = self.occupancy.needed or ASSUMED_BYTES
        return -(-needed * self.occupancy.blocks // max(1, self.occupancy.bytes_in_flight))

    @property
    def empty_tokens(self) -> int:
        """The time that an empty thread block takes, relative to the time in which a multiprocessor processes one
        token.

        A thread block is empty if its partition begins past the end of its sequence. An empty thread block only starts,
        loads the length of the sequence, and ends.
        """
        needed = self.occupancy.needed or ASSUMED_BYTES  # the bytes that arrive in the latency of a load
        idle_ns = self.target.block_start_ns + self.target.latency_ns
        return math.ceil(needed * idle_ns / self.target.latency_ns / self.variant.kv_token_bytes)

    def figures(self) -> dict[str, int | float | str | None]:
        """Return the values that ``pav2gen list`` prints for the CUDA kernel, as a dict from column name to value."""
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
    """Return the size in bytes of all keys in a page, for one KV head.

    The values in a page have the same size as the keys.
    """
    return v.head_size * v.block_size * v.cache_item_bytes


def shared_bytes(v: Variant, heads: int, step: int) -> int:
    """Return the bytes of shared memory that a thread block of the CUDA decode kernel ``v`` needs.

    Shared memory holds the query and the softmax weights in float32, and the block number of each page of the
    partition. Shared memory also holds a few numbers per query head.

    heads: the number of query heads that the thread block computes.
    step: the number of tokens that the thread block processes at a time.
    """
    scalars = 1 + (step < v.partition_size) + v.sinks + len(CudaHooks(v).parameters)
    floats = heads * (v.head_size + step + scalars) + v.pages_per_partition
    return -(-floats * 4 // 16) * 16


def plan_cuda(v: Variant, target: Target, choices: Mapping[str, int]) -> CudaPlan:
    """Choose the layout of the CUDA decode kernel ``v`` for the GPU ``target``.

    The plan divides the query heads of one KV head over as few thread blocks as possible, because each thread block
    reads the KV cache. Among the layouts with the fewest thread blocks, the plan uses the first result of ``layouts``.
    Raises ValueError if ``choices`` has a step that is shorter than a page.

    choices: the values that the spec prescribes, as a dict with some of the keys of ``CHOICES``. The entry ``threads``
    is the number of threads per thread block. The entry ``step`` is the number of tokens that a thread block processes
    at a time. A step larger than the partition size is reduced to the partition size. The entry ``tokens`` is the
    number of token groups whose scores a warp computes at the same time. The number of token groups is halved until the
    accumulators fit in registers.
    """
    for blocks in range(1, v.gqa_ratio + 1):
        heads = -(-v.gqa_ratio // blocks)
        if found := layouts(v, target, heads, choices):
            return found[0]
    raise ValueError(f"no layout of {v.slug} has a step of {choices.get('step')} tokens")


def layouts(v: Variant, target: Target, heads: int, choices: Mapping[str, int]) -> list[CudaPlan]:
    """Return the possible layouts with ``heads`` query heads per thread block, the best layout first.

    A step is the part of a partition that a thread block processes at a time. Five criteria decide the order of the
    layouts, the most important criterion first:

    * Layouts with loads of V of at most ``target.load_bytes`` bytes come before layouts with wider loads.
    * Layouts with steps of ``SHORT_STEP`` tokens or more, or of whole partitions, come before layouts with shorter
      steps.
    * Layouts with a higher result of ``_grade``, that is, with more bytes in flight, come first.
    * Layouts with longer steps come first.
    * Layouts with fewer threads per thread block come first.

    choices: the values that the spec prescribes, as a dict with some of the keys of ``CHOICES``.
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
    """Return the grade of a layout, which compares the layout's bytes in flight with those that full bandwidth needs.

    Bytes in flight were requested from memory and have not arrived yet. The grade is 0 if ``in_flight`` is at least
    ``needed``. Each halving of ``in_flight`` lowers the grade by ``GRADES``. The grade is rounded to an integer.

    in_flight: the bytes in flight on one multiprocessor.
    needed: the bytes in flight on one multiprocessor that full bandwidth needs.
    """
    return round(GRADES * math.log2(min(1.0, max(in_flight, 1) / needed)))


def _candidates(v: Variant, target: Target, heads: int, choices: Mapping[str, int]) -> Iterator[Geometry]:
    """Yield the layouts of a thread block with which the accumulators of each thread fit in registers.

    Layouts with longer steps come first, where a step is the part of a partition that a thread block processes at a
    time. Among layouts with equally long steps, layouts with fewer threads come first.

    heads: the number of query heads that a thread block computes.
    choices: the values that the spec prescribes, as a dict with some of the keys of ``CHOICES``.
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
    """Return the largest number of accumulators per thread that fit in registers.

    threads: the number of threads in a thread block.
    """
    return min(MOST_ACCUMULATORS, REGISTER_FILE // threads - OTHER_REGISTERS)


def _threads(v: Variant, target: Target, chosen: int | None) -> tuple[int, ...]:
    """Return the possible numbers of threads per thread block.

    If ``chosen`` is not None, the result contains only ``chosen``. Otherwise, the result depends on the size of a page.
    For pages with less than 512 bytes of keys per KV head, the result contains only 64. For larger pages, the result
    contains the numbers 128, 256 and 512, without numbers that exceed the target's limit.

    chosen: the number of threads that the spec prescribes, or None.
    """
    if chosen:
        return (chosen,)
    counts = (64,) if page_bytes(v) < 512 else (128, 256, 512)
    return tuple(threads for threads in counts if threads <= target.max_threads_per_block)


def _runs_fit(v: Variant, g: Geometry) -> bool:
    """Whether a warp can compute the scores of ``g.runs`` groups of tokens at the same time.

    The accumulators and the keys in float32 must fit in registers. Each warp must also have at least ``TOKENS_PER_RUN``
    tokens for each group, in each step of the kernel.
    """
    unpacked = g.runs * g.key_words * 4 // v.cache_item_bytes
    busy = g.runs * TOKENS_PER_RUN * (g.threads // WIDEST_WARP) <= g.step
    fits = g.runs * g.heads <= MOST_SCORES and accumulators(v, g) <= most_accumulators(g.threads)
    return fits and unpacked <= UNPACKED_FLOATS and busy


def _steps(v: Variant, chosen: int | None) -> list[int]:
    """Return the possible numbers of tokens that a thread block processes at a time.

    If ``chosen`` is not None, the result contains only ``chosen``, limited to the partition size. The result is empty
    if ``chosen`` is smaller than a page. If ``chosen`` is None, the result contains the partition size, half the
    partition size, a quarter of the partition size, and so on. Fractions of less than 64 tokens, or of less than a
    page, are left out.

    chosen: the number of tokens that the spec prescribes, or None.
    """
    if chosen:
        return [min(chosen, v.partition_size)] if chosen >= v.block_size else []
    steps = [v.partition_size]
    while steps[-1] // 2 >= max(v.block_size, 64):
        steps.append(steps[-1] // 2)
    return steps


def _key_words(v: Variant, load_bytes: int) -> int:
    """Choose the number of 32-bit words that a thread reads with one load of K.

    The function chooses the widest load of at most ``load_bytes`` bytes that keeps all lanes of a 64-lane warp busy. If
    every load leaves lanes idle, the function chooses the widest load of at most ``load_bytes`` bytes.
    """
    widths = [width for width in (16, 8, 4) if width <= load_bytes]
    whole = [width for width in widths if page_bytes(v) // width % WIDEST_WARP == 0]
    return (whole or widths)[0] // 4


def _rows(v: Variant, threads: int, load_bytes: int) -> list[tuple[int, int]]:
    """Return the ways in which threads may read a row of V, the best way first.

    A row of V holds one of the ``head_size`` elements of the value, for every token of a page. Each result is a pair:
    the number of 32-bit words per load, and the number of threads that read a row side by side.

    Pairs that keep all threads busy come before pairs that leave threads idle. In each of the two groups, pairs with
    loads of at most ``load_bytes`` bytes come before pairs with wider loads. With one load each, the threads of a row
    read at least one memory sector or the whole row.

    threads: the number of threads in a thread block.
    load_bytes: the best width of a load on the target, in bytes.
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
