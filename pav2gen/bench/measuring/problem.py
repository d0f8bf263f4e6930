"""A problem to measure: a key, the heads of a rank, and a batch. Its pages are in random order in a large cache.

A few blocks of random values are repeated over the blocks of the cache. So a kernel reads a cache of full size, while
the float64 reference reads a small one with the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pav2gen.bench.measuring.baselines import PARTITION
from pav2gen.family.variant import ITEM_BYTES
from pav2gen.runtime.call import BlockSparse, Call
from pav2gen.runtime.select import Key, Modification
from pav2gen.runtime.testing import cases

#: Bytes of K (and of V) with their own random values. The rest of the cache repeats these bytes.
DRAWN_BYTES = 16 << 20

#: The size of all inputs of a problem, as a multiple of the last-level cache's size. So a call's input is not cached.
CACHES = 2

#: The size of the KV cache, as a multiple of the pages in use. The blocks of a sequence are spread over it at random.
SPARE_BLOCKS = 3

#: The pattern of a block-sparse key: 4 local blocks of 64 tokens, then every 8th.
SPARSE = BlockSparse(local_blocks=4, vert_stride=8, block_size=64, head_sliding_step=0, tp_rank=0)


@dataclass(frozen=True)
class Problem:
    """``num_seqs`` sequences of ``seq_len`` tokens, for a rank with ``kv_heads`` KV heads.

    modification: the definition of the modification that ``key`` names.
    """

    key: Key
    kv_heads: int
    num_seqs: int
    seq_len: int
    modification: Modification | None = None

    @property
    def num_heads(self) -> int:
        """Query heads of the rank."""
        return self.kv_heads * self.key.gqa_ratio

    @property
    def item_bytes(self) -> int:
        """Bytes of one element of the KV cache."""
        return ITEM_BYTES[self.key.dtype] if self.key.kv_cache_dtype == "auto" else 1

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V in the batch. Every kernel must read them, except with a window or a sparse pattern."""
        return self._kv_bytes_of(self.seq_len)

    def _kv_bytes_of(self, tokens: int) -> int:
        """Bytes of K and V of ``tokens`` tokens of each sequence."""
        return 2 * self.num_seqs * tokens * self.kv_heads * self.key.head_size * self.item_bytes

    @property
    def io_bytes(self) -> int:
        """Bytes of K and V in the sequences' windows (of all tokens without a window), of the query and the output."""
        query = self.num_seqs * self.num_heads * self.key.head_size * ITEM_BYTES[self.key.dtype]
        return self._kv_bytes_of(min(self.seq_len, self.key.sliding_window or self.seq_len)) + 2 * query

    @property
    def label(self) -> str:
        """A short description of the problem, for a progress bar."""
        cache = self.key.dtype if self.key.kv_cache_dtype == "auto" else self.key.kv_cache_dtype
        return f"S={self.num_seqs} L={self.seq_len} {self.num_heads}/{self.kv_heads} {cache}"

    def __str__(self) -> str:
        return f"S={self.num_seqs} L={self.seq_len} {self.num_heads}/{self.kv_heads} heads, {self.key}"


@dataclass(frozen=True)
class Inputs:
    """The calls of a problem, which all have the same values. ``small`` is on the CPU and has few blocks.

    ``count`` calls are on the device and share a cache. Call i reads its blocks from i·stride to (i + 1)·stride - 1.
    """

    small: Call
    first: Call
    stride: int
    count: int

    def call(self, number: int) -> Call:
        """Call ``number``."""
        if not number:
            return self.first
        return self.first._replace(block_tables=self.first.block_tables + number * self.stride)


def make(problem: Problem, device: torch.device, cache_bytes: int, seed: int = 0) -> Inputs:
    """Make the inputs of ``problem``. Together, the calls exceed a processor's cache of ``cache_bytes``."""
    page = problem.key.block_size
    pages = problem.num_seqs * -(-problem.seq_len // page)
    page_bytes = problem.kv_heads * problem.key.head_size * page * problem.item_bytes
    drawn = max(1, min(pages, DRAWN_BYTES // page_bytes))
    options = {"k_scale": 0.3, "v_scale": 0.7} if problem.key.kv_cache_dtype != "auto" else {}
    case = cases.Case(
        problem.key,
        PARTITION,
        (problem.seq_len,) * problem.num_seqs,
        kv_heads=problem.kv_heads,
        shared_blocks=drawn,
        poison=False,
        seed=seed,
        sparse=SPARSE if problem.key.blocksparse else None,
        modification=problem.modification,
        **options,  # type: ignore[arg-type]
    )
    small = cases.make(case)._replace(lse=None)  # vLLM asks for none
    order = torch.randperm(pages + SPARE_BLOCKS, generator=torch.Generator().manual_seed(seed))[:pages].int()
    table = order.view(problem.num_seqs, -1)
    count = max(1, -(-CACHES * cache_bytes // problem.kv_bytes))
    stride = (
        -(-(pages + SPARE_BLOCKS) // drawn) * drawn
    )  # a block of the next call has the same content as in the first
    blocks = stride * (count - 1) + pages + SPARE_BLOCKS
    return Inputs(small._replace(block_tables=table % drawn), _spread(small, table, blocks, device), stride, count)


def _spread(small: Call, table: torch.Tensor, blocks: int, device: torch.device) -> Call:
    """Copy the call ``small`` to ``device``, with a cache of ``blocks`` blocks that repeat the blocks of ``small``."""
    moved = cases.to(small, device)
    times = -(-blocks // small.key_cache.shape[0])
    return moved._replace(
        key_cache=moved.key_cache.repeat(times, 1, 1, 1, 1)[:blocks],
        value_cache=moved.value_cache.repeat(times, 1, 1, 1)[:blocks],
        block_tables=table.to(device),
    )


def rotation(inputs: Inputs) -> Iterator[Call]:
    """The calls of ``inputs``, repeated endlessly."""
    while True:
        for number in range(inputs.count):
            yield inputs.call(number)
