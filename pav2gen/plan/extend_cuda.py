"""Chooses the layout of a CUDA extend kernel: the query rows of a thread block, its shared memory, and its threads.

A query row is a pair of a query token and a query head. A tile is a number of consecutive query tokens of one sequence.
A thread block processes one tile and one partition of the keys, with all query heads of a KV head if they fit. The
block reads each key and value once for all its query rows. Three resources limit the number of query rows. Shared
memory stores their queries and softmax weights. Registers store their outputs. The arithmetic grows with the number of
query rows.

Which calls prefer this kernel
------------------------------
The unit of time here is the time to read K and V of the whole sequence once. A block with R query rows does R
multiply-adds for each element that it reads. If an element has two bytes, a multiprocessor does ``BALANCED_ROWS``
multiply-adds in the time that the read of one element takes. So a tile takes R / ``BALANCED_ROWS`` units of time, or 1
unit if that is more. A query of q tokens, with G query heads per KV head, takes at least

    max(ceil(q / tile), q * G / BALANCED_ROWS)

The PyTorch kernel gathers K and V only once for a short query. The gather reads each element and writes it as float32,
and then the matrix product reads the float32. Together this takes 1 + 2 * 4 / (bytes of an element) units. The vendor's
BLAS library then does the arithmetic many times as fast as scalar code. ``query_len`` is the longest query for which
the CUDA kernel takes at most the time of the PyTorch kernel. The model leaves out the time to launch kernels. This
favours the PyTorch kernel, because it launches more kernels.
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
from pav2gen.runtime.tiling import partitions_reached

#: The most query tokens per tile, and the most query rows per thread block.
MOST_TOKENS, MOST_ROWS = 16, 48

#: The number of query rows for which the arithmetic on a two-byte element of the cache takes as long as the read of
#: this element. At the peak of a BI-V100, this number is 63: each of 16 multiprocessors does 768 multiply-adds per
#: cycle at 1.5 GHz, while 584 GB/s arrive. A scalar loop is assumed to reach 40 % of the peak, because it also converts
#: elements and reads its operands from shared memory.
BALANCED_ROWS = 25

#: The most and the fewest bytes of K (or of V) that a thread block loads in one step. Other numbers of bytes are used
#: only if no layout fits with these.
MOST_STEP_BYTES, LEAST_STEP_BYTES = 16 << 10, 8 << 10

#: The most loads that a thread block issues at the same time. Each load needs registers for its address.
MOST_LOADS = 2048

#: MOST_OUTPUTS: the most float32 accumulators of outputs per thread. FEWEST_OUTPUTS: a thread block has more than 128
#: threads only if each thread has at least this many accumulators of outputs.
MOST_OUTPUTS, FEWEST_OUTPUTS = 48, 12

#: The most elements of a query row's output that a thread computes. For each element, the thread unpacks up to eight
#: values at a time.
MOST_ELEMENTS = 2

#: The most query rows that a warp scores at the same time, the most keys that a lane scores at the same time, and the
#: most score accumulators of a lane (one for each pair of such a query row and such a key).
MOST_CHUNK_ROWS, MOST_LANE_KEYS, MOST_SCORES = 8, 2, 8

#: A partition is long enough if the partial results of a thread block have at most this share of the bytes that the
#: block reads. The plan chooses the shortest partition that is long enough, else the longest one.
PARTIALS_SHARE = 1 / 10

#: The possible partition sizes, in keys.
PARTITIONS = (256, 512, 1024, 2048)

#: The number of bytes in a sector of memory, on every target.
SECTOR = 32


@dataclass(frozen=True)
class ExtendCudaPlan:
    """The plan of a CUDA extend kernel."""

    variant: ExtendVariant
    geometry: ExtendGeometry
    target: Target

    @property
    def scalar(self) -> str:
        """The CUDA type of query and out."""
        return SCALARS[self.variant.dtype]

    @property
    def query_format(self) -> str:
        """The struct of runtime/cuda/pav2_device.cuh that decodes elements of the query."""
        return STORED[self.variant.dtype]

    @property
    def stored(self) -> str:
        """The struct of runtime/cuda/pav2_device.cuh that decodes elements of the cache."""
        v = self.variant
        return STORED[v.dtype if v.kv_cache_dtype == "auto" else v.kv_cache_dtype]

    @property
    def scaled(self) -> bool:
        """Whether the cache holds encoded elements, so that K and V have scales."""
        return self.variant.kv_cache_dtype != "auto"

    @property
    def partition_size(self) -> int:
        """The number of keys that a thread block processes."""
        return self.geometry.partition

    @property
    def blocks_per_group(self) -> int:
        """The number of thread blocks that the query heads of one KV head are divided over. Every one of these thread
        blocks reads the cache.
        """
        return -(-self.variant.gqa_ratio // self.geometry.heads)

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
    def dims_may_end(self) -> bool:
        """Whether some threads are idle in the last round of adding values, because no element of the head is left for
        them.
        """
        return self.variant.head_size % self.geometry.dim_lanes != 0

    @property
    def loads_may_end(self) -> bool:
        """Whether some threads are idle in the last round of loading keys or values, because nothing is left to
        load.
        """
        return kv_bytes(self.variant, self.geometry.step) % (4 * self.geometry.load_words * self.geometry.threads) != 0

    @property
    def page_bytes(self) -> int:
        """Bytes of K in a page, for one KV head. V has as many bytes as K."""
        return kv_bytes(self.variant, self.variant.block_size)

    @property
    def shared_bytes(self) -> int:
        """Bytes of static shared memory of the kernel that computes partitions. The reduction kernel is not
        included.
        """
        return shared_bytes(self.variant, self.geometry)

    @property
    def outputs_per_thread(self) -> int:
        """The number of float32 accumulators of outputs per thread."""
        return outputs(self.variant, self.geometry)

    @property
    def max_registers(self) -> int:
        """The most registers per thread with which ``RESIDENT_THREADS`` threads can be resident on a multiprocessor."""
        return min(255, REGISTER_FILE // max(self.geometry.threads, RESIDENT_THREADS))

    def partials_bytes(self, num_heads: int, max_seq_len: int) -> int:
        """Bytes of workspace for the partial results of one tile of query tokens. A launch needs at least this
        workspace.

        Each partition of the keys has a partial result. With only one partition, no workspace is needed.
        """
        v, g = self.variant, self.geometry
        reach = None if v.sliding_window is None else v.sliding_window + g.tokens - 1
        partitions = partitions_reached(max_seq_len, g.partition, reach)
        return 4 * g.tokens * num_heads * partitions * (v.head_size + 2) if partitions > 1 else 0

    @cached_property
    def hooks(self) -> CudaHooks:
        """The code between the product q·k and the softmax, which changes scores and masks keys."""
        return CudaHooks(self.variant)

    @property
    def reads_head(self) -> bool:
        """Whether the hooks read the index of the query head in the thread block: as the index of an element of a
        parameter tensor, or to compute the index among all query heads.
        """
        return bool(self.hooks.parameters) or self.reads_heads_number

    @property
    def reads_heads_number(self) -> bool:
        """Whether the hooks read ``h``, the index of the query head among all query heads."""
        return any(map(self.hooks.reads_head, (self.hooks.scores, self.hooks.masks)))

    @property
    def key_lanes(self) -> int:
        """The number of lanes of a warp that score different keys."""
        return KEY_LANES

    @property
    def picture(self) -> list[str]:
        """A picture of how threads divide keys and values, as lines for the comment at the top of a CUDA source."""
        return extend_picture(self.variant, self.geometry)

    @property
    def query_len(self) -> int:
        """The longest query, in tokens, for which this kernel is preferred to the PyTorch kernel. The module's
        docstring explains how this length is estimated.
        """
        v, g = self.variant, self.geometry
        other = 1 + 2 * 4 / v.cache_item_bytes
        balanced = BALANCED_ROWS * v.cache_item_bytes / 2
        by_reads = int(other / self.blocks_per_group) * g.tokens
        by_arithmetic = int(other * balanced / v.gqa_ratio)
        return max(1, min(by_reads, by_arithmetic))

    def figures(self) -> dict[str, int | float | str | None]:
        """The numbers about the CUDA kernel that ``pav2gen list`` shows, by column."""
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
    """Bytes of K for ``keys`` tokens and one KV head. V has as many bytes as K."""
    return keys * v.head_size * v.cache_item_bytes


def shared_bytes(v: ExtendVariant, g: ExtendGeometry) -> int:
    """Bytes of shared memory per thread block.

    Shared memory holds the keys or values of a step, the queries, the softmax weights, page numbers, and a few numbers
    per query row or head.
    """
    item = {"float16": 2, "bfloat16": 2, "float32": 4}[v.dtype]
    queries = g.row_slots * v.head_size * item
    floats = g.row_slots * g.step + 2 * g.rows + len(CudaHooks(v).parameters) * g.heads
    total = kv_bytes(v, g.step) + queries + 4 * (floats + g.partition // v.block_size)
    return -(-total // 16) * 16


def outputs(v: ExtendVariant, g: ExtendGeometry) -> int:
    """The number of float32 accumulators of outputs per thread."""
    return -(-g.rows // g.row_groups) * -(-v.head_size // g.dim_lanes)


def plan_extend_cuda(v: ExtendVariant, target: Target) -> ExtendCudaPlan:
    """Choose the layout of a CUDA extend kernel.

    The query heads of one KV head are divided over as few thread blocks as possible. Then the tile has as many query
    tokens as fit. Fewer blocks and fewer tiles save time, because each block and each tile reads the cache again.
    Raises ValueError if not even a block with one query row fits.
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
    """The most bytes of shared memory that a thread block may use."""
    return min(SHARED_LIMIT, target.shared_memory_bytes)


def least_shared_bytes(v: ExtendVariant, target: Target) -> int:
    """The bytes of shared memory of the smallest possible thread block, which has one query row."""
    return min(shared_bytes(v, g) for g in _candidates(v, target, heads=1, tokens=1))


def _candidates(v: ExtendVariant, target: Target, heads: int, tokens: int) -> Iterator[ExtendGeometry]:
    """The geometries to try for ``heads`` query heads and ``tokens`` query tokens per block. Longer steps come
    first.
    """
    rows = heads * tokens
    threads = _threads(v, target, rows)
    dim_lanes = _dim_lanes(v, threads, rows)
    for step in _steps(v, target):
        chunk, lane_keys = _scoring(step, rows, threads // target.warp_size)
        words = _load_words(v, target, step)
        yield ExtendGeometry(threads, heads, tokens, step, chunk, lane_keys, words, dim_lanes, _partition(v, rows))


def _threads(v: ExtendVariant, target: Target, rows: int) -> int:
    """The number of threads in a thread block: 512, or fewer if each thread would have less than ``FEWEST_OUTPUTS``
    accumulators.
    """
    counts = [threads for threads in (512, 256) if threads <= target.max_threads_per_block]
    return next((threads for threads in counts if rows * v.head_size >= FEWEST_OUTPUTS * threads), 128)


def _dim_lanes(v: ExtendVariant, threads: int, rows: int) -> int:
    """The number of threads that divide the elements of one query row's output among them while values are added.

    The number is a multiple of a warp, so that all lanes of a warp read the softmax weights of the same query row. The
    choice is the number with the fewest accumulators per thread. Among numbers with equally many accumulators, the
    smallest is chosen. A thread then adds values to the most elements for each softmax weight that it reads.
    """
    least = min(threads, -(-v.head_size // MOST_ELEMENTS))
    choices = [lanes for lanes in (64, 128, 256, 512) if least <= lanes <= threads]

    def cost(lanes: int) -> tuple[int, int]:
        return -(-rows // (threads // lanes)) * -(-v.head_size // lanes), lanes

    return min(choices, key=cost)


def _steps(v: ExtendVariant, target: Target) -> list[int]:
    """The possible numbers of keys per step, the largest first. A step is a number of whole pages, or a part of a page.

    A part of a page is possible only if its rows of V are at least one sector of memory.
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
    """Choose the number of query rows per warp and of keys per lane that are scored at the same time, for the least
    time.

    The estimate of the time: for each element of the head, a lane converts its keys and queries to float32, and
    multiplies each key by each query.
    """

    def cost(choice: tuple[int, int]) -> tuple[int, int]:
        chunk, keys = choice
        items = -(-rows // chunk) * (step // (keys * KEY_LANES))
        return -(-items // warps) * (chunk * keys + chunk + keys), -chunk

    choices = [(c, k) for c in range(1, min(MOST_CHUNK_ROWS, rows) + 1) for k in range(1, MOST_LANE_KEYS + 1)]
    fit = (c for c in choices if step % (c[1] * KEY_LANES) == 0 and c[0] * c[1] <= MOST_SCORES)
    return min(fit, key=cost)


def _load_words(v: ExtendVariant, target: Target, step: int) -> int:
    """The number of 32-bit words that a thread reads with one load. A load has the target's ``load_bytes``, or fewer
    bytes if a step has only a shorter part of a row of V.
    """
    return min(target.load_bytes, min(step, v.block_size) * v.cache_item_bytes, 16) // 4


def _partition(v: ExtendVariant, rows: int) -> int:
    """The number of keys per thread block: large enough that the partial results are small compared with the keys and
    values.
    """
    share = [2 * 4 * rows / (2 * keys * v.cache_item_bytes) for keys in PARTITIONS]
    return next((keys for keys, part in zip(PARTITIONS, share) if part <= PARTIALS_SHARE), PARTITIONS[-1])
