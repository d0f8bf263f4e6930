"""The layout of a CUDA extend kernel: the query rows of a thread block, its shared memory, and its threads.

A thread block processes a tile: some query tokens of one sequence, with all query heads of a KV head if they fit. Each
pair of a query token and a query head is a row. A block reads each key and value of its partition once for all of its
rows. Three resources limit the rows: shared memory holds their queries and weights, registers hold their outputs, and
the arithmetic grows with the rows.

Which calls prefer this kernel
------------------------------
The unit of time here is one read of K and V. A block with R rows does R multiply-adds for each element that it reads.
A multiprocessor does ``BALANCED_ROWS`` of them, for an element of two bytes, in the time of the read. So the time of a
tile is R / BALANCED_ROWS if that is more than 1, and a query of q tokens with a group of G heads takes at least

    max(ceil(q / tile), q * G / balanced rows)

The PyTorch kernel gathers K and V only once for a short query. The gather reads each element and writes it as float32,
and the matmul reads it again. This takes 1 + 2 * 4 / item bytes units. The vendor's BLAS then does the arithmetic many
times faster than scalar code. ``query_len`` is the longest query for which the time of the CUDA kernel is at most that
of the PyTorch kernel. The model ignores the launches of the PyTorch kernel, which favours the PyTorch kernel.
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

#: Most query tokens of a tile, and most rows of a block.
MOST_TOKENS, MOST_ROWS = 16, 48

#: Rows for which the arithmetic of two bytes of the cache takes as long as their read. The peak of a BI-V100 is 63: 16
#: multiprocessors do 768 multiply-adds in a cycle of 1.5 GHz while 584 GB/s arrive. A scalar loop, which also converts
#: elements and reads its operands from shared memory, is assumed to reach 40 % of that.
BALANCED_ROWS = 25

#: Most and least bytes of K, or of V, that a block loads together.
MOST_STEP_BYTES, LEAST_STEP_BYTES = 16 << 10, 8 << 10

#: Most loads of a block together. Each has an address in registers.
MOST_LOADS = 2048

#: Most accumulators of outputs (float32) of a thread, and the fewest for which a block has more threads.
MOST_OUTPUTS, FEWEST_OUTPUTS = 48, 12

#: Most elements of the head that a thread adds values to. It unpacks up to eight values of each together.
MOST_ELEMENTS = 2

#: Most rows that a warp scores together, most keys that a lane scores together, and most accumulators of scores.
MOST_CHUNK_ROWS, MOST_LANE_KEYS, MOST_SCORES = 8, 2, 8

#: The partials of a block are at most this part of the bytes that it reads, if the partition can be long enough.
PARTIALS_SHARE = 1 / 10

#: The partitions to choose from, in keys.
PARTITIONS = (256, 512, 1024, 2048)

#: Bytes of a sector of memory, on every target.
SECTOR = 32


@dataclass(frozen=True)
class ExtendCudaPlan:
    """Figures of the CUDA kernel."""

    variant: ExtendVariant
    geometry: ExtendGeometry
    target: Target

    @property
    def scalar(self) -> str:
        """The type of query and out."""
        return SCALARS[self.variant.dtype]

    @property
    def query_format(self) -> str:
        """The struct of runtime/cuda/pav2_device.cuh that decodes the query."""
        return STORED[self.variant.dtype]

    @property
    def stored(self) -> str:
        """The struct of runtime/cuda/pav2_device.cuh that decodes the cache."""
        v = self.variant
        return STORED[v.dtype if v.kv_cache_dtype == "auto" else v.kv_cache_dtype]

    @property
    def scaled(self) -> bool:
        """Whether the cache is compressed, so that K and V have scales."""
        return self.variant.kv_cache_dtype != "auto"

    @property
    def partition_size(self) -> int:
        """Keys of a thread block."""
        return self.geometry.partition

    @property
    def blocks_per_group(self) -> int:
        """Thread blocks that share the query heads of a KV head. Each of them reads the cache."""
        return -(-self.variant.gqa_ratio // self.geometry.heads)

    @property
    def uneven(self) -> bool:
        """Whether the last block of a group has fewer heads than the others."""
        return self.variant.gqa_ratio % self.geometry.heads != 0

    @property
    def head_count(self) -> str:
        """The number of query heads of a block, as the source spells it."""
        return "at.heads" if self.uneven else "kBlockHeads"

    @property
    def dims_may_end(self) -> bool:
        """Whether some threads have no element of the head in the last round, and so are idle."""
        return self.variant.head_size % self.geometry.dim_lanes != 0

    @property
    def loads_may_end(self) -> bool:
        """Whether some threads have nothing to load in the last round, and so are idle."""
        return kv_bytes(self.variant, self.geometry.step) % (4 * self.geometry.load_words * self.geometry.threads) != 0

    @property
    def page_bytes(self) -> int:
        """Bytes of K, or of V, in a page of one KV head."""
        return kv_bytes(self.variant, self.variant.block_size)

    @property
    def shared_bytes(self) -> int:
        """Bytes of static shared memory of the partial kernel."""
        return shared_bytes(self.variant, self.geometry)

    @property
    def outputs_per_thread(self) -> int:
        """Accumulators of outputs that a thread holds."""
        return outputs(self.variant, self.geometry)

    @property
    def max_registers(self) -> int:
        """The most registers that a thread may have if ``RESIDENT_THREADS`` are to be resident."""
        return min(255, REGISTER_FILE // max(self.geometry.threads, RESIDENT_THREADS))

    def partials_bytes(self, num_heads: int, max_seq_len: int) -> int:
        """Bytes of workspace for the partial results of one tile. A launch needs at least this much."""
        v, g = self.variant, self.geometry
        reach = None if v.sliding_window is None else v.sliding_window + g.tokens - 1
        partitions = partitions_reached(max_seq_len, g.partition, reach)
        return 4 * g.tokens * num_heads * partitions * (v.head_size + 2) if partitions > 1 else 0

    @cached_property
    def hooks(self) -> CudaHooks:
        """The hooks, which change or mask a score between the product and the softmax."""
        return CudaHooks(self.variant)

    @property
    def reads_head(self) -> bool:
        """Whether the final score of a row depends on its query head."""
        return bool(self.hooks.parameters) or self.reads_heads_number

    @property
    def reads_heads_number(self) -> bool:
        """Whether the final score of a row depends on the number of its query head among all heads."""
        return any(map(self.hooks.reads_head, (self.hooks.scores, self.hooks.masks)))

    @property
    def key_lanes(self) -> int:
        """The number of lanes of a warp that score different keys."""
        return KEY_LANES

    @property
    def picture(self) -> list[str]:
        """Lines that show how lanes score keys and how threads add values, for the top of a source."""
        return extend_picture(self.variant, self.geometry)

    @property
    def query_len(self) -> int:
        """Calls with this max_query_len or less prefer the CUDA kernel, by the model in this module's docstring."""
        v, g = self.variant, self.geometry
        other = 1 + 2 * 4 / v.cache_item_bytes
        balanced = BALANCED_ROWS * v.cache_item_bytes / 2
        by_reads = int(other / self.blocks_per_group) * g.tokens
        by_arithmetic = int(other * balanced / v.gqa_ratio)
        return max(1, min(by_reads, by_arithmetic))

    def figures(self) -> dict[str, int | float | str | None]:
        """The figures of the CUDA kernel that ``pav2gen list`` shows."""
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
    """Bytes of K, or of V, of ``keys`` tokens in one KV head."""
    return keys * v.head_size * v.cache_item_bytes


def shared_bytes(v: ExtendVariant, g: ExtendGeometry) -> int:
    """Bytes of shared memory: keys or values, queries, weights, page numbers, and a few numbers of each row or head."""
    item = {"float16": 2, "bfloat16": 2, "float32": 4}[v.dtype]
    queries = g.row_slots * v.head_size * item
    floats = g.row_slots * g.step + 2 * g.rows + len(CudaHooks(v).parameters) * g.heads
    total = kv_bytes(v, g.step) + queries + 4 * (floats + g.partition // v.block_size)
    return -(-total // 16) * 16


def outputs(v: ExtendVariant, g: ExtendGeometry) -> int:
    """Accumulators of outputs that a thread holds."""
    return -(-g.rows // g.row_groups) * -(-v.head_size // g.dim_lanes)


def plan_extend_cuda(v: ExtendVariant, target: Target) -> ExtendCudaPlan:
    """Choose the layout of a variant's extend kernel.

    The query heads of a KV head (a group) are split evenly over as few thread blocks as possible. The tile has as many
    query tokens as fit. Both matter because each block and each tile reads the cache again.
    Raises ValueError if a block of one row does not fit.
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
    """The most bytes of shared memory that a plan gives a thread block."""
    return min(SHARED_LIMIT, target.shared_memory_bytes)


def least_shared_bytes(v: ExtendVariant, target: Target) -> int:
    """The bytes of shared memory of the smallest thread block, which has one row."""
    return min(shared_bytes(v, g) for g in _candidates(v, target, heads=1, tokens=1))


def _candidates(v: ExtendVariant, target: Target, heads: int, tokens: int) -> Iterator[ExtendGeometry]:
    """Geometries for some rows, the longest step first."""
    rows = heads * tokens
    threads = _threads(v, target, rows)
    dim_lanes = _dim_lanes(v, threads, rows)
    for step in _steps(v, target):
        chunk, lane_keys = _scoring(step, rows, threads // target.warp_size)
        words = _load_words(v, target, step)
        yield ExtendGeometry(threads, heads, tokens, step, chunk, lane_keys, words, dim_lanes, _partition(v, rows))


def _threads(v: ExtendVariant, target: Target, rows: int) -> int:
    """The number of threads of a block: 512, or fewer if each would have less than ``FEWEST_OUTPUTS`` accumulators."""
    counts = [threads for threads in (512, 256) if threads <= target.max_threads_per_block]
    return next((threads for threads in counts if rows * v.head_size >= FEWEST_OUTPUTS * threads), 128)


def _dim_lanes(v: ExtendVariant, threads: int, rows: int) -> int:
    """How many threads divide the elements of the head among them. It is a multiple of a warp.

    So all lanes of a warp read the weights of the same row. The number with the fewest accumulators is chosen, then
    the one with the most elements of the head for each weight that a thread reads.
    """
    least = min(threads, -(-v.head_size // MOST_ELEMENTS))
    choices = [lanes for lanes in (64, 128, 256, 512) if least <= lanes <= threads]

    def cost(lanes: int) -> tuple[int, int]:
        return -(-rows // (threads // lanes)) * -(-v.head_size // lanes), lanes

    return min(choices, key=cost)


def _steps(v: ExtendVariant, target: Target) -> list[int]:
    """The possible numbers of keys of a step, the largest first. A step is whole pages, or a part of a page.

    A part of a page is used only if its rows of V are whole sectors of memory.
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
    """Choose how many rows a warp and how many keys a lane scores together, so that scoring takes the least time.

    For each element of the head, a lane converts each of its keys and queries, and multiplies all pairs of them.
    """

    def cost(choice: tuple[int, int]) -> tuple[int, int]:
        chunk, keys = choice
        items = -(-rows // chunk) * (step // (keys * KEY_LANES))
        return -(-items // warps) * (chunk * keys + chunk + keys), -chunk

    choices = [(c, k) for c in range(1, min(MOST_CHUNK_ROWS, rows) + 1) for k in range(1, MOST_LANE_KEYS + 1)]
    fit = (c for c in choices if step % (c[1] * KEY_LANES) == 0 and c[0] * c[1] <= MOST_SCORES)
    return min(fit, key=cost)


def _load_words(v: ExtendVariant, target: Target, step: int) -> int:
    """32-bit words of a load: the target's width, or the length of a row of V in a page of the step if that is less."""
    return min(target.load_bytes, min(step, v.block_size) * v.cache_item_bytes, 16) // 4


def _partition(v: ExtendVariant, rows: int) -> int:
    """The number of keys of a block: enough that the partial results are few bytes beside the keys and values."""
    share = [2 * 4 * rows / (2 * keys * v.cache_item_bytes) for keys in PARTITIONS]
    return next((keys for keys, part in zip(PARTITIONS, share) if part <= PARTIALS_SHARE), PARTITIONS[-1])
