"""Chooses the layout of a CUDA extend kernel: how the threads of a thread block divide the work.

A query row is a pair of a query token and a query head. A query tile is a set of consecutive query tokens of one
sequence. A thread block processes one query tile and one partition of the keys. If possible, the thread block computes
all query heads of one KV head. Each thread block reads its keys and values once for all its query rows.

Three resources limit the number of query rows per thread block. Shared memory holds the queries and softmax weights of
all query rows. Registers hold the outputs of all query rows. The time for arithmetic grows with each query row.

The dispatch prefers the CUDA kernel to the PyTorch kernel for queries of at most ``query_len`` tokens. A model of the
times of both kernels determines ``query_len``. The model's unit of time is the time to read K and V of the whole
sequence once.

In the CUDA kernel, a thread block with R query rows does R multiply-adds for each element that it reads. In the time to
read one two-byte element, a multiprocessor can do ``BALANCED_ROWS`` multiply-adds. A query tile with R query rows
therefore takes R / ``BALANCED_ROWS`` units, but at least 1 unit. For a query of q tokens, with G query heads per KV
head and query tiles of t tokens, the CUDA kernel takes at least this number of units:

    max(ceil(q / t), q * G / BALANCED_ROWS)

The PyTorch kernel converts K and V to float32 once for a short query. The conversion reads each element of the KV cache
and writes it as float32. The matrix product then reads the float32 elements. The conversion and the reads together take
1 + 2 * 4 / (bytes of an element) units. The model neglects the arithmetic of the PyTorch kernel, because a BLAS library
computes many times as fast as scalar code.

The model also neglects the time to launch kernels. Neglecting launch times favours the PyTorch kernel, which launches
more kernels than the CUDA kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.target import Target
from pav2gen.family.variant import ExtendVariant
from pav2gen.plan.cuda_geometry import KEY_LANES, ExtendGeometry
from pav2gen.plan.cuda_hooks import CudaHooks
from pav2gen.plan.cuda_picture import extend_picture
from pav2gen.plan.cuda_plan import REGISTER_FILE, RESIDENT_THREADS, SCALARS, SHARED_LIMIT, STORED
from pav2gen.runtime.attention.tiling import partitions_reached

#: MOST_TOKENS is the largest number of query tokens per query tile. MOST_ROWS is the largest number of query rows per
#: thread block.
MOST_TOKENS, MOST_ROWS = 16, 48

#: The number of query rows with which the arithmetic on an element takes as long as reading it, for a KV cache with two
#: bytes per element. At the peak of a BI-V100, this number is 63: each of 16 multiprocessors does 768 multiply-adds per
#: cycle at 1.5 GHz, and all together read 584 GB/s. A scalar loop is assumed to reach 40 % of the peak, because it also
#: converts elements and reads its operands from shared memory.
BALANCED_ROWS = 25

#: The largest and the smallest number of bytes of K (and also of V) that a thread block loads in one step. The plan
#: uses fewer bytes only if no other layout fits, and more bytes only if even the shortest step has more.
MOST_STEP_BYTES, LEAST_STEP_BYTES = 16 << 10, 8 << 10

#: The largest number of loads of K (and also of V) in a step, over all threads of a thread block. Each load needs
#: registers for its address.
MOST_LOADS = 2048

#: MOST_OUTPUTS is the largest number of float32 accumulators per thread for the output. A thread block has more than
#: 128 threads only if each thread then has at least FEWEST_OUTPUTS of these accumulators.
MOST_OUTPUTS, FEWEST_OUTPUTS = 48, 12

#: The largest number of elements of the head that a thread computes in the output of one query row. For each of them,
#: the thread holds up to eight values as float32 at the same time.
MOST_ELEMENTS = 2

#: MOST_CHUNK_ROWS is the largest number of query rows that a warp scores at the same time. MOST_LANE_KEYS is the
#: largest number of keys that a lane scores at the same time. MOST_SCORES is the largest number of score accumulators
#: of a lane. A lane has one for each pair of such a query row and such a key.
MOST_CHUNK_ROWS, MOST_LANE_KEYS, MOST_SCORES = 8, 2, 8

#: A thread block reads K and V of one partition, and writes partial results. The plan chooses the shortest partition
#: with which the bytes written are at most this share of the bytes read. If there is none, it chooses the longest
#: partition.
PARTIALS_SHARE = 1 / 10

#: The partition sizes that the plan can choose, as numbers of keys.
PARTITIONS = (256, 512, 1024, 2048)

#: The number of bytes in a sector of memory, on every target.
SECTOR = 32


@dataclass(frozen=True)
class ExtendCudaPlan:
    """The layout and resources of a CUDA extend kernel, and the longest query for which the kernel is preferred.

    The alternative to the CUDA kernel is the PyTorch kernel.
    """

    variant: ExtendVariant
    geometry: ExtendGeometry
    target: Target

    @property
    def scalar(self) -> str:
        """The CUDA type of the elements of the tensors query and out."""
        return SCALARS[self.variant.dtype]

    @property
    def query_format(self) -> str:
        """The name of the struct in runtime/cuda/pav2_device.cuh that decodes elements of the query tensor."""
        return STORED[self.variant.dtype]

    @property
    def stored(self) -> str:
        """The name of the struct in runtime/cuda/pav2_device.cuh that decodes elements of the KV cache."""
        v = self.variant
        return STORED[v.dtype if v.kv_cache_dtype == "auto" else v.kv_cache_dtype]

    @property
    def scaled(self) -> bool:
        """Whether the KV cache holds 8-bit numbers that a scale turns into keys and values."""
        return self.variant.kv_cache_dtype != "auto"

    @property
    def partition_size(self) -> int:
        """The number of keys that a thread block processes."""
        return self.geometry.partition

    @property
    def blocks_per_group(self) -> int:
        """The number of thread blocks that share the query heads of one KV head.

        Each thread block that shares a KV head reads the head's keys and values from the KV cache.
        """
        return -(-self.variant.gqa_ratio // self.geometry.heads)

    @property
    def uneven(self) -> bool:
        """Whether the last of the thread blocks that share one KV head computes fewer query heads than the others."""
        return self.variant.gqa_ratio % self.geometry.heads != 0

    @property
    def head_count(self) -> str:
        """The CUDA code for the number of query heads that a thread block computes."""
        return "at.heads" if self.uneven else "kBlockHeads"

    @property
    def dims_may_end(self) -> bool:
        """Whether some threads are idle in the last round of adding values to the output.

        In each round, each thread processes one of the ``head_size`` elements of the output. The last round may have
        fewer elements than threads.
        """
        return self.variant.head_size % self.geometry.dim_lanes != 0

    @property
    def loads_may_end(self) -> bool:
        """Whether some threads are idle in the last round of loading keys or values into shared memory.

        The last round may have fewer loads than threads.
        """
        return kv_bytes(self.variant, self.geometry.step) % (4 * self.geometry.load_words * self.geometry.threads) != 0

    @property
    def page_bytes(self) -> int:
        """The size in bytes of all keys in a page, for one KV head.

        The values in a page have the same size as the keys.
        """
        return kv_bytes(self.variant, self.variant.block_size)

    @property
    def shared_bytes(self) -> int:
        """The bytes of static shared memory per thread block of the kernel that computes partitions.

        The number excludes the shared memory of the reduction kernel, which merges the results of the partitions.
        """
        return shared_bytes(self.variant, self.geometry)

    @property
    def outputs_per_thread(self) -> int:
        """The number of float32 accumulators per thread for the output."""
        return outputs(self.variant, self.geometry)

    @property
    def max_registers(self) -> int:
        """The most registers per thread with which ``RESIDENT_THREADS`` threads fit on a multiprocessor."""
        return min(255, REGISTER_FILE // max(self.geometry.threads, RESIDENT_THREADS))

    def partials_bytes(self, num_heads: int, max_seq_len: int) -> int:
        """Return the smallest workspace in bytes with which the kernel can be launched.

        The workspace holds the partial results of one query tile, that is, of consecutive query tokens of one sequence.
        Each partition of the keys has one partial result. If the keys have only one partition, the result is 0.

        num_heads: the number of query heads.
        max_seq_len: an upper bound of the sequence lengths, in tokens.
        """
        v, g = self.variant, self.geometry
        reach = None if v.sliding_window is None else v.sliding_window + g.tokens - 1
        partitions = partitions_reached(max_seq_len, g.partition, reach)
        return 4 * g.tokens * num_heads * partitions * (v.head_size + 2) if partitions > 1 else 0

    @cached_property
    def hooks(self) -> CudaHooks:
        """The generated code that changes scores and masks keys, between the product q·k and the softmax."""
        return CudaHooks(self.variant)

    @property
    def reads_head(self) -> bool:
        """Whether the generated score and mask code reads the index of the query head in the thread block.

        The code uses the index to read the head's element of a parameter tensor, or to compute the head's index among
        all query heads.
        """
        return bool(self.hooks.parameters) or self.reads_heads_number

    @property
    def reads_heads_number(self) -> bool:
        """Whether the generated score and mask code reads ``h``, the index of the query head among all query heads."""
        return any(map(self.hooks.reads_head, (self.hooks.scores, self.hooks.masks)))

    @property
    def key_lanes(self) -> int:
        """The number of lanes of a warp that compute the scores of different keys."""
        return KEY_LANES

    @property
    def picture(self) -> list[str]:
        """Lines of text that show how the threads divide keys and values.

        The comment at the top of the CUDA source contains the picture.
        """
        return extend_picture(self.variant, self.geometry)

    @property
    def query_len(self) -> int:
        """The length in tokens of the longest query for which this kernel is preferred to the PyTorch kernel.

        The docstring of this module explains how the length is estimated.
        """
        v, g = self.variant, self.geometry
        other = 1 + 2 * 4 / v.cache_item_bytes
        balanced = BALANCED_ROWS * v.cache_item_bytes / 2
        by_reads = int(other / self.blocks_per_group) * g.tokens
        by_arithmetic = int(other * balanced / v.gqa_ratio)
        return max(1, min(by_reads, by_arithmetic))

    def figures(self) -> dict[str, int | float | str | None]:
        """Return the values that ``pav2gen list`` prints for the CUDA kernel, as a dict from column name to value."""
        g = self.geometry
        return {
            "threads": g.threads,
            "shared_kib": round(self.shared_bytes / 1024, 1),
            "heads_per_block": g.heads,
            "blocks_per_group": self.blocks_per_group,
            "load_bytes": 4 * g.load_words,
            "tile_tokens": g.tokens,
            "block_keys": g.partition,
            "cuda_query_len": self.query_len,
        }


def kv_bytes(v: ExtendVariant, keys: int) -> int:
    """Return the size in bytes of ``keys`` keys of one KV head.

    The values of the same tokens have the same size as the keys.
    """
    return keys * v.head_size * v.cache_item_bytes


def shared_bytes(v: ExtendVariant, g: ExtendGeometry) -> int:
    """Return the bytes of shared memory that a thread block of the CUDA extend kernel ``v`` needs.

    Shared memory holds the queries, the softmax weights, and the block number of each page of the partition. Shared
    memory also holds the keys or values that the thread block processes at a time, and a few numbers per query row or
    query head.

    g: the layout of the thread block.
    """
    item = {"float16": 2, "bfloat16": 2, "float32": 4}[v.dtype]
    queries = g.row_slots * v.head_size * item
    floats = g.row_slots * g.step + 2 * g.rows + len(CudaHooks(v).parameters) * g.heads
    total = kv_bytes(v, g.step) + queries + 4 * (floats + g.partition // v.block_size)
    return -(-total // 16) * 16


def outputs(v: ExtendVariant, g: ExtendGeometry) -> int:
    """Return the number of float32 accumulators per thread for the output."""
    return -(-g.rows // g.row_groups) * -(-v.head_size // g.dim_lanes)


def plan_extend_cuda(v: ExtendVariant, target: Target) -> ExtendCudaPlan:
    """Choose the layout of the CUDA extend kernel ``v`` for the GPU ``target``.

    The plan divides the query heads of one KV head over as few thread blocks as possible, because each thread block
    reads the KV cache. Each thread block then computes as many query tokens as fit, to read the KV cache less often.
    Raises ValueError if not even a thread block with one query token and one query head fits.
    """
    limit = shared_limit(target)
    for least in (LEAST_STEP_BYTES, 0):
        for blocks in range(1, v.gqa_ratio + 1):
            heads = -(-v.gqa_ratio // blocks)
            for tokens in range(min(MOST_TOKENS, MOST_ROWS // heads), 0, -1):
                for g in _candidates(v, target, heads, tokens):
                    small = kv_bytes(v, g.step) < least
                    if not small and shared_bytes(v, g) <= limit and outputs(v, g) <= MOST_OUTPUTS:
                        return ExtendCudaPlan(v, g, target)
    raise ValueError(f"no layout of {v.slug} fits {limit} bytes of shared memory")


def shared_limit(target: Target) -> int:
    """Return the largest number of bytes of shared memory that a thread block on the GPU ``target`` may use."""
    return min(SHARED_LIMIT, target.shared_memory_bytes)


def least_shared_bytes(v: ExtendVariant, target: Target) -> int:
    """Return the bytes of shared memory that the smallest possible thread block needs.

    The smallest thread block computes one query token and one query head.
    """
    return min(shared_bytes(v, g) for g in _candidates(v, target, heads=1, tokens=1))


def _candidates(v: ExtendVariant, target: Target, heads: int, tokens: int) -> Iterator[ExtendGeometry]:
    """Yield the thread block layouts to try.

    Layouts that process more keys at a time come first.

    heads: the number of query heads that a thread block computes.
    tokens: the number of query tokens that a thread block computes.
    """
    rows = heads * tokens
    threads = _threads(v, target, rows)
    dim_lanes = _dim_lanes(v, threads, rows)
    for step in _steps(v, target):
        chunk, lane_keys = _scoring(step, rows, threads // target.warp_size)
        words = _load_words(v, target, step)
        yield ExtendGeometry(threads, heads, tokens, step, chunk, lane_keys, words, dim_lanes, _partition(v, rows))


def _threads(v: ExtendVariant, target: Target, rows: int) -> int:
    """Choose the number of threads in a thread block: 512, 256 or 128.

    The function chooses the largest number that the target allows, and that gives each thread ``FEWEST_OUTPUTS`` output
    accumulators or more. If neither 512 nor 256 is possible, the function chooses 128.

    rows: the number of (query token, query head) pairs that the thread block computes.
    """
    counts = [threads for threads in (512, 256) if threads <= target.max_threads_per_block]
    return next((threads for threads in counts if rows * v.head_size >= FEWEST_OUTPUTS * threads), 128)


def _dim_lanes(v: ExtendVariant, threads: int, rows: int) -> int:
    """Choose the number of threads that together compute the output of one query row.

    A query row is a pair of a query token and a query head. The threads divide the ``head_size`` output elements of the
    query row among themselves. The number of threads is a multiple of 64, so that all lanes of a warp read the softmax
    weights of the same query row.

    The function chooses the number that needs the fewest accumulators per thread. If several numbers need equally few
    accumulators, the function chooses the smallest number. With fewer threads, each thread uses a softmax weight for
    more output elements.

    threads: the number of threads in a thread block.
    rows: the number of query rows that a thread block computes.
    """
    least = min(threads, -(-v.head_size // MOST_ELEMENTS))
    choices = [lanes for lanes in (64, 128, 256, 512) if least <= lanes <= threads]

    def cost(lanes: int) -> tuple[int, int]:
        return -(-rows // (threads // lanes)) * -(-v.head_size // lanes), lanes

    return min(choices, key=cost)


def _steps(v: ExtendVariant, target: Target) -> list[int]:
    """Return the possible numbers of keys that a thread block processes at a time, the largest number first.

    Each number is a multiple of the page size, or a fraction of the page size. A fraction is allowed only if its keys
    fill at least one memory sector in each row of V. A row of V holds one of the ``head_size`` elements of the value,
    for every token of a page.
    """
    page, item = v.block_size, v.cache_item_bytes
    steps = [
        step
        for step in range(KEY_LANES, PARTITIONS[0] + 1, KEY_LANES)
        if step % page == 0 or (page % step == 0 and step * item >= SECTOR)
    ]
    most = min(MOST_STEP_BYTES, MOST_LOADS * target.load_bytes)
    return [step for step in reversed(steps) if kv_bytes(v, step) <= most] or steps[:1]


def _scoring(step: int, rows: int, warps: int) -> tuple[int, int]:
    """Choose the number of query rows per warp and the number of keys per lane whose scores are computed at the same
    time.

    The function returns the pair of numbers with the shortest estimated time. The estimate counts how often a lane
    converts elements of keys and queries to float32, and how often the lane multiplies the elements.

    step: the number of keys that a thread block processes at a time.
    rows: the number of query rows, that is, of (query token, query head) pairs, that a thread block computes.
    warps: the number of warps in a thread block.
    """

    def cost(choice: tuple[int, int]) -> tuple[int, int]:
        chunk, keys = choice
        items = -(-rows // chunk) * (step // (keys * KEY_LANES))
        return -(-items // warps) * (chunk * keys + chunk + keys), -chunk

    choices = [(c, k) for c in range(1, min(MOST_CHUNK_ROWS, rows) + 1) for k in range(1, MOST_LANE_KEYS + 1)]
    fit = (c for c in choices if step % (c[1] * KEY_LANES) == 0 and c[0] * c[1] <= MOST_SCORES)
    return min(fit, key=cost)


def _load_words(v: ExtendVariant, target: Target, step: int) -> int:
    """Choose the number of 32-bit words that a thread reads with one load.

    The function chooses the best width on the target (``target.load_bytes``). A load is narrower if the thread block
    needs fewer bytes at a time from a row of V. A row of V holds one of the ``head_size`` elements of the value, for
    every token of a page.

    step: the number of keys that a thread block processes at a time.
    """
    return min(target.load_bytes, min(step, v.block_size) * v.cache_item_bytes, 16) // 4


def _partition(v: ExtendVariant, rows: int) -> int:
    """Choose the number of keys in a partition.

    The partition is the shortest with which a thread block writes few bytes compared with the bytes that it reads. A
    thread block reads keys and values, and writes partial results. ``PARTIALS_SHARE`` is the largest accepted ratio of
    bytes written to bytes read. If no partition size is large enough, the function chooses the largest.

    rows: the number of (query token, query head) pairs that a thread block computes.
    """
    share = [2 * 4 * rows / (2 * keys * v.cache_item_bytes) for keys in PARTITIONS]
    return next((keys for keys, part in zip(PARTITIONS, share) if part <= PARTIALS_SHARE), PARTITIONS[-1])
