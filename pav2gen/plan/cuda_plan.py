"""What a CUDA kernel costs: threads, loads, shared memory, and how its group of query heads is split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pav2gen.family.target import Target
from pav2gen.family.variant import Variant

#: What a block may use of shared memory, by design: the limit of a BI-V100 is not established.
SHARED_LIMIT = 48 << 10

#: Threads that should be resident on a multiprocessor to hide latency: 8 warps of 32 lanes, 4 of 64.
RESIDENT_THREADS = 256

#: Accumulators of a thread (float32): so many leave room for several blocks, and so many still fit without spills,
#: beside what is loaded and unpacked (ptxas, sm_75: 154 registers at 48, 252 at 142).
FEW_ACCUMULATORS, MOST_ACCUMULATORS = 48, 120

#: Runs of tokens that a warp scores at once, at most: a load of keys of each is on its way before the first is used.
MOST_TOKENS = 4

#: Floats that a thread unpacks at once.
UNPACKED_FLOATS = 32

#: A load of values takes whole sectors of memory from each row: 32 bytes on every target.
SECTOR = 32

#: What a spec may set, and the values that are built.
CHOICES: Mapping[str, tuple[int, ...]] = {
    "threads": (64, 128, 256, 512),
    "step": (64, 128, 256, 512, 1024, 2048),
    "tokens": (1, 2, 4),
}

#: Registers of a multiprocessor (NVIDIA, compute capability 7.0 to 9.0): what ptxas is held to.
REGISTER_FILE = 64 << 10

#: How the sources name the cache's storage and the type of query and out.
STORED = {"float16": "Float16", "bfloat16": "BFloat16", "float32": "Float32", "fp8_e4m3": "E4M3", "fp8_e5m2": "E5M2"}
SCALARS = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}


@dataclass(frozen=True)
class Geometry:
    """How the work of a block is laid out over its threads.

    heads: query heads of a block. step: tokens whose scores are held at once. tokens: runs of tokens that a warp scores
    at once. key_words, value_words: 32-bit words of a load. row_lanes: threads side by side in a row of values.
    """

    threads: int
    heads: int
    step: int
    tokens: int
    key_words: int
    value_words: int
    row_lanes: int


@dataclass(frozen=True)
class CudaPlan:
    """Figures of the CUDA kernel."""

    variant: Variant
    geometry: Geometry

    @property
    def scalar(self) -> str:
        """The type of query, out and tmp_out."""
        return SCALARS[self.variant.dtype]

    @property
    def stored(self) -> str:
        """How the cache stores its elements: a struct of runtime/cuda/pav2_device.cuh."""
        v = self.variant
        return STORED[v.dtype if v.kv_cache_dtype == "auto" else v.kv_cache_dtype]

    @property
    def blocks(self) -> int:
        """Thread blocks that share the query heads of a KV head; the cache is read so many times."""
        return -(-self.variant.gqa_ratio // self.geometry.heads)

    @property
    def steps(self) -> int:
        """Steps of a partition."""
        return self.variant.partition_size // self.geometry.step

    @property
    def uneven(self) -> bool:
        """Whether the last block of a group has fewer heads than the others."""
        return self.variant.gqa_ratio % self.geometry.heads != 0

    @property
    def head_count(self) -> str:
        """The query heads of a block, as the source spells them."""
        return "at.heads" if self.uneven else "kHeads"

    @property
    def lanes_without_grain(self) -> bool:
        """Whether some lanes of a warp of 64 have no grain of a key at all."""
        lanes = 64 * self.geometry.key_words // 4
        return lanes // min(self.variant.block_size, lanes) > self.variant.head_size // self.variant.grain

    @property
    def rows_may_end(self) -> bool:
        """Whether some threads have no row in the last round of a page of values."""
        return self.variant.head_size * self.geometry.row_lanes % self.geometry.threads != 0

    @property
    def tile(self) -> int:
        """Slots of a page that all threads take at once."""
        return self.geometry.row_lanes * self.geometry.value_words * (4 // self.variant.cache_item_bytes)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of the partial kernel; static."""
        return shared_bytes(self.variant, self.geometry.heads, self.geometry.step)

    @property
    def page_bytes(self) -> int:
        """Bytes of K, or of V, in a page of one KV head."""
        return page_bytes(self.variant)

    @property
    def max_registers(self) -> int:
        """Registers of a thread that still let ``RESIDENT_THREADS`` be resident."""
        return min(255, REGISTER_FILE // max(self.geometry.threads, RESIDENT_THREADS))

    def kv_bytes(self, pages: int, kv_heads: int) -> int:
        """Bytes of K and V that a call requests for ``pages`` pages: each once for every block of the group."""
        return 2 * page_bytes(self.variant) * pages * kv_heads * self.blocks

    def table_bytes(self, pages: int, kv_heads: int) -> int:
        """Bytes of the block tables that a call requests for ``pages`` pages."""
        return 4 * pages * kv_heads * self.blocks

    def figures(self) -> dict[str, int | float | str]:
        """What ``pav2gen list`` shows of the CUDA kernel."""
        g = self.geometry
        return {
            "threads": g.threads,
            "shared_kib": round(self.shared_bytes / 1024, 1),
            "heads_per_block": g.heads,
            "blocks_per_group": self.blocks,
            "load_bytes": f"{4 * g.key_words}/{4 * g.value_words}",
        }


def page_bytes(v: Variant) -> int:
    """Bytes of K, or of V, in a page of one KV head."""
    return v.head_size * v.block_size * v.cache_item_bytes


def shared_bytes(v: Variant, heads: int, step: int) -> int:
    """Bytes of shared memory: query and weights in float32, block numbers, and z, rescale and slope of each head."""
    scalars = 1 + (step < v.partition_size) + v.alibi
    floats = heads * (v.head_size + step + scalars) + v.pages_per_partition
    return -(-floats * 4 // 16) * 16


def plan_cuda(v: Variant, target: Target, choices: Mapping[str, int]) -> CudaPlan:
    """The geometry of a variant: the whole group in a block if it can be, else in as few blocks as possible.

    Each further block of a group reads the cache again. ``choices`` sets some of ``CHOICES``: threads of a block; step,
    a partition if it is longer; tokens, which are halved until their accumulators fit. Raises ValueError if a step is
    less than a page.
    """
    for blocks in range(1, v.gqa_ratio + 1):
        heads = -(-v.gqa_ratio // blocks)
        for few, residence in itertools.product((True, False), repeat=2):
            accumulators = FEW_ACCUMULATORS if few else MOST_ACCUMULATORS
            for candidate in _candidates(v, target, heads, choices, accumulators):
                if _shared_fits(v, target, candidate, residence):
                    return CudaPlan(v, candidate)
    raise ValueError(f"no layout of {v.slug} has a step of {choices.get('step')} tokens")


def _shared_fits(v: Variant, target: Target, g: Geometry, residence: bool) -> bool:
    """Whether a block's shared memory is within bounds: of a multiprocessor with enough threads, or of one block."""
    blocks = -(-RESIDENT_THREADS // g.threads) if residence else 1
    return shared_bytes(v, g.heads, g.step) * blocks <= min(SHARED_LIMIT, target.shared_memory_bytes)


def _candidates(v: Variant, target: Target, heads: int, choices: Mapping[str, int], most: int) -> Iterator[Geometry]:
    """Geometries whose accumulators are at most ``most``; the longest step, the fewest threads, whole pages first."""
    key_words = _key_words(v, target.load_bytes)
    for step in _steps(v, choices.get("step")):
        for threads in _threads(v, target, choices.get("threads")):
            for value_words, row_lanes in _rows(v, threads, target.load_bytes):
                rows = -(-v.head_size * row_lanes // threads)
                held = rows * heads if step < v.partition_size else 0  # while keys are scored
                tokens = choices.get("tokens", MOST_TOKENS)
                while tokens > 1 and not _tokens_fit(v, tokens, heads, threads, key_words, step, most - held):
                    tokens //= 2
                g = Geometry(threads, heads, step, tokens, key_words, value_words, row_lanes)
                if max(rows * heads, held + tokens * heads) <= min(most, REGISTER_FILE // threads - 96):
                    yield g


def _threads(v: Variant, target: Target, chosen: int | None) -> tuple[int, ...]:
    """Threads of a block: those chosen, else as few as can be, of which a small page needs fewer still."""
    if chosen:
        return (chosen,)
    few = (64,) if page_bytes(v) < 512 else (128, 256, 512)
    return tuple(threads for threads in few if threads <= target.max_threads_per_block)


def _tokens_fit(v: Variant, tokens: int, heads: int, threads: int, key_words: int, step: int, most: int) -> bool:
    """Whether a lane may score so many tokens at once: accumulators, unpacked floats, and work for every warp."""
    unpacked = tokens * key_words * 4 // v.cache_item_bytes
    return tokens * heads <= min(32, most) and unpacked <= UNPACKED_FLOATS and tokens * 16 * (threads // 64) <= step


def _steps(v: Variant, chosen: int | None) -> list[int]:
    """The step chosen, else the partition and its halves, down to a page or 64 tokens."""
    if chosen:
        return [min(chosen, v.partition_size)] if chosen >= v.block_size else []
    steps = [v.partition_size]
    while steps[-1] // 2 >= max(v.block_size, 64):
        steps.append(steps[-1] // 2)
    return steps


def _key_words(v: Variant, load_bytes: int) -> int:
    """32-bit words of a load of keys: the widest that leaves no lane of a 64-lane warp idle, else the widest."""
    widths = [width for width in (16, 8, 4) if width <= load_bytes]
    whole = [width for width in widths if page_bytes(v) // width % 64 == 0]
    return (whole or widths)[0] // 4


def _rows(v: Variant, threads: int, load_bytes: int) -> list[tuple[int, int]]:
    """(32-bit words of a load of values, threads in a row): as the target asks and no thread idle first, then wider.

    A row is one element of the head over the slots of a page; threads in a row take all of it, or whole sectors.
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
