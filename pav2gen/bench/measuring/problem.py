"""Defines a problem to measure, and makes the calls that measure it.

A problem is a kernel configuration (``Key``), the numbers of heads of a tensor-parallel rank, and a batch of sequences.
The pages of the sequences are in random order in a large KV cache. A few pages with random values are repeated
throughout this cache. So a kernel reads a cache of full size, while the float64 reference reads a small cache with the
same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pav2gen.bench.measuring.baselines import PARTITION
from pav2gen.family.variant import ITEM_BYTES
from pav2gen.runtime.call import BlockSparse, Call
from pav2gen.runtime.choice.dispatch_row import Modification
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.testing import cases

#: At most this many bytes of K, and as many of V, in the KV cache of a problem are random. The rest of the cache
#: repeats these bytes.
DRAWN_BYTES = 16 << 20

#: Together, the calls of a problem read at least this many times the size of the last-level cache. So the input of a
#: call is not in that cache when the call begins.
CACHES = 2

#: Each call uses its own part of the KV cache. The part has this many more blocks than the call has pages. The pages of
#: the call lie in random blocks of the part.
SPARE_BLOCKS = 3

#: The block-sparse pattern of problems for kernels with block-sparse attention. A query attends 4 local blocks of 64
#: tokens, and every 8th block before them.
SPARSE = BlockSparse(local_blocks=4, vert_stride=8, block_size=64, head_sliding_step=0, tp_rank=0)


@dataclass(frozen=True)
class Problem:
    """A decode call to measure: ``num_seqs`` sequences of ``seq_len`` tokens, as one tensor-parallel rank computes
    them.

    key: the kernel configuration.
    kv_heads: the number of KV heads of the rank.
    modification: the definition of the modification that ``key`` names, or None.
    """

    key: Key
    kv_heads: int
    num_seqs: int
    seq_len: int
    modification: Modification | None = None

    @property
    def num_heads(self) -> int:
        """The number of query heads of the rank."""
        return self.kv_heads * self.key.gqa_ratio

    @property
    def item_bytes(self) -> int:
        """The size of one element of the KV cache, in bytes."""
        return ITEM_BYTES[self.key.dtype] if self.key.kv_cache_dtype == "auto" else 1

    @property
    def kv_bytes(self) -> int:
        """The size of K and V of the whole batch, in bytes.

        Every kernel must read all of these bytes, unless it has a window or a sparse pattern.
        """
        return self._kv_bytes_of(self.seq_len)

    def _kv_bytes_of(self, tokens: int) -> int:
        """The size, in bytes, of K and V of ``tokens`` tokens of each sequence."""
        return 2 * self.num_seqs * tokens * self.kv_heads * self.key.head_size * self.item_bytes

    @property
    def io_bytes(self) -> int:
        """The size of the query, K, V and the output together, in bytes.

        If the kernel has a window, only K and V of the tokens in the window count.
        """
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
    """The calls that are made to measure one problem.

    The queries, keys and values of all calls are equal. But the keys and values of each call are in different
    blocks of the KV cache on the device.

    small: a call with the same values on the CPU, with a small KV cache, for the float64 reference.
    first: the first of the calls on the device.
    count: the number of calls on the device.
    stride: the number that is added to each block number in the block tables, from one call to the next.
    """

    small: Call
    first: Call
    stride: int
    count: int

    def call(self, number: int) -> Call:
        """Return the call on the device with the number ``number``. The numbers are from 0 to ``count`` - 1."""
        if not number:
            return self.first
        return self.first._replace(block_tables=self.first.block_tables + number * self.stride)


def make(problem: Problem, device: torch.device, cache_bytes: int, seed: int = 0) -> Inputs:
    """Make the calls of ``problem`` on ``device``. Together, they read at least twice ``cache_bytes``.

    cache_bytes: the size of the device's last-level cache, in bytes.
    seed: the seed of the random values, and of the random order of the pages.
    """
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
    small = cases.make(case)._replace(lse=None)  # vLLM passes no lse
    order = torch.randperm(pages + SPARE_BLOCKS, generator=torch.Generator().manual_seed(seed))[:pages].int()
    table = order.view(problem.num_seqs, -1)
    count = max(1, -(-CACHES * cache_bytes // problem.kv_bytes))
    stride = (
        -(-(pages + SPARE_BLOCKS) // drawn) * drawn
    )  # a block of the next call has the same content as in the first
    blocks = stride * (count - 1) + pages + SPARE_BLOCKS
    return Inputs(small._replace(block_tables=table % drawn), _spread(small, table, blocks, device), stride, count)


def _spread(small: Call, table: torch.Tensor, blocks: int, device: torch.device) -> Call:
    """Copy the call ``small`` to ``device``, with a cache of ``blocks`` blocks that repeat the blocks of ``small``.

    table: the block table of the new call, [seqs, pages] int32.
    """
    moved = cases.to(small, device)
    times = -(-blocks // small.key_cache.shape[0])
    return moved._replace(
        key_cache=moved.key_cache.repeat(times, 1, 1, 1, 1)[:blocks],
        value_cache=moved.value_cache.repeat(times, 1, 1, 1)[:blocks],
        block_tables=table.to(device),
    )


def rotation(inputs: Inputs) -> Iterator[Call]:
    """Yield the calls of ``inputs``, one after the other, endlessly."""
    while True:
        for number in range(inputs.count):
            yield inputs.call(number)
