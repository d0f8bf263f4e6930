"""Makes inputs for tests and benchmarks of the decode operator. ``Case`` describes the inputs, and ``make`` makes them.

All tensors are on the CPU, in vLLM's layouts. The contents and the block tables are random, and the same for the same
seed.
"""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..call import BlockSparse, Call, Scratch
from ..choice.dispatch_row import Modification
from ..choice.key import Key
from .oracle import nearest_codes

#: Tests write this value to the entries of a block table that no kernel may read, such as those past a sequence's last
#: page. A kernel that uses it as a block number fails visibly.
GARBAGE = 0x7FFF7FFF


#: A stride in elements that does not fit an int32.
FAR = 1 << 31

#: ``far_apart`` gives strides of FAR + n * size elements to the first dimensions of a tensor. Here n is one of these
#: numbers, another one for each dimension, so that no two elements have the same address. size is the number of
#: elements in the other dimensions, rounded up to a multiple of 512.
EXCESS = (1, 101, 10_007)

#: A cache repeats this many random numbers, because drawing a number for each element would take longer than a kernel.
#: The count is prime, so that any two pages or tokens that a kernel could confuse have different numbers.
POOL = 32_749

#: Linux's flag for ``mmap`` to map address space without memory. Python names it from 3.13 on.
MAP_NORESERVE = 0x4000


#: The scale of the keys or values in a compressed cache: one float for all KV heads, or one for each.
Scale = float | Sequence[float]


@dataclass(frozen=True)
class Case:
    """The description of the inputs of one decode call.

    If ``shared_blocks`` is not 0, ``poison`` has no effect.

    key: the kernel key, that is, the head size, the dtype and other properties that a kernel must match.
    partition_size: the number of tokens in a partition.
    seq_lens: the sequence lengths in tokens.
    max_seq_len: the call's argument ``max_seq_len``, in tokens; None means the longest of ``seq_lens``.
    query_gap: the number of unused elements between the rows of the query, as in a slice of a fused QKV projection.
    block_gap: the size of the unused memory between two blocks of the KV cache, in pages of one KV head.
    spare_partitions: the number of partitions that the scratch tensors have in addition to the needed ones.
    poison: whether to write NaN to all cache slots that a kernel must not read, and invalid block numbers to all block
    table entries that a kernel must not read.
    shared_blocks: the number of blocks in a KV cache where several block table entries name the same block, which saves
    memory in tests with long sequences; with 0, every page has its own block.
    sparse: the block-sparse pattern of the call, or None.
    score_size: a factor by which the attention scores are multiplied.
    sinks: the attention sinks of the first query heads, which further query heads repeat.
    modification: the definition of the score modification that ``key`` names, or None.
    """

    key: Key
    partition_size: int
    seq_lens: Sequence[int]
    kv_heads: int = 2
    max_seq_len: int | None = None
    seed: int = 0
    query_gap: int = 0
    block_gap: int = 0
    spare_partitions: int = 0
    poison: bool = True
    shared_blocks: int = 0
    k_scale: Scale = 1.0
    v_scale: Scale = 1.0
    sparse: BlockSparse | None = None
    score_size: float = 1.0
    sinks: Sequence[float] = (6.0, -math.inf, 9.0, -2.0, 4.0)
    modification: Modification | None = None

    @property
    def longest(self) -> int:
        """The argument ``max_seq_len`` of the call, in tokens."""
        return max(self.seq_lens, default=0) if self.max_seq_len is None else self.max_seq_len

    def attended(self, s: int) -> range:
        """Return the token positions that the last token of sequence ``s`` attends to, without block-sparse patterns
        and masks.

        The length of the sequence is clamped to the call's ``max_seq_len``.
        """
        stop = max(0, min(self.seq_lens[s], self.longest))
        return range(max(0, stop - self.key.sliding_window) if self.key.sliding_window else 0, stop)


def make(case: Case) -> Call:
    """Make the inputs that ``case`` describes, on the CPU.

    The query, the keys and the values are random numbers from N(0, 1). All elements of out, lse and the scratch tensors
    are NaN.
    """
    generator = torch.Generator().manual_seed(case.seed)
    key, seqs = case.key, len(case.seq_lens)
    heads = case.kv_heads * key.gqa_ratio
    dtype = getattr(torch, key.dtype)
    longest = case.longest
    tables, blocks = block_tables(case, generator)
    k, v = caches(case, blocks)
    if case.poison and not case.shared_blocks:
        poison(case, k, v, tables)
    partitions = -(-longest // case.partition_size) + case.spare_partitions
    row = torch.randn(seqs, heads * key.head_size + case.query_gap, generator=generator).to(dtype)
    nan = float("nan")
    sinks = torch.tensor([case.sinks[h % len(case.sinks)] for h in range(heads)]) if key.sinks else None
    axes = {"heads": heads, "kv_heads": case.kv_heads}
    definition = case.modification.tensors if case.modification else ()
    slopes = 2.0 ** (torch.arange(1, heads + 1) * (-8.0 / heads)) if key.alibi else None  # of the ALiBi paper
    return Call(
        out=torch.full((seqs, heads, key.head_size), nan, dtype=dtype),
        scratch=Scratch(
            exp_sums=torch.full((seqs, heads, partitions), nan),
            max_logits=torch.full((seqs, heads, partitions), nan),
            tmp_out=torch.full((seqs, heads, partitions, key.head_size), nan, dtype=dtype),
        ),
        query=row[:, : heads * key.head_size].unflatten(1, (heads, key.head_size)),
        key_cache=k,
        value_cache=v,
        scale=key.head_size**-0.5 * case.score_size,
        block_tables=tables,
        seq_lens=torch.tensor(case.seq_lens, dtype=torch.int32),
        max_seq_len=longest,
        alibi_slopes=slopes,
        k_scale=scale_of(case.k_scale),
        v_scale=scale_of(case.v_scale),
        sparse=case.sparse,
        softcap=key.softcap,
        sliding_window=key.sliding_window,
        sinks=sinks,
        modification=key.modification,
        tensors=tuple(torch.randn(axes[axis], generator=generator) for _, axis in definition),
        lse=torch.full((seqs, heads), nan),
    )


def pages_of(case: Case, s: int) -> range:
    """Return the range of entries in row ``s`` of the block table that a kernel reads.

    Each of these entries names the block of a page that contains a token in ``case.attended(s)``.
    """
    tokens, page = case.attended(s), case.key.block_size
    return range(tokens.start // page, -(-tokens.stop // page)) if tokens else range(0)


def block_tables(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, int]:
    """Make the block tables, and return the tables and the number of blocks in the KV cache.

    The block tables are int32, [seqs, number of pages for ``case.longest`` tokens]. If ``case.shared_blocks`` is 0,
    every page has its own block, and some blocks of the cache are unused.
    """
    page, seqs = case.key.block_size, len(case.seq_lens)
    if case.shared_blocks:
        shape = (seqs, -(-case.longest // page))
        return torch.randint(0, case.shared_blocks, shape, generator=generator).int(), case.shared_blocks
    blocks = sum(pages_of(case, s).stop for s in range(seqs)) + 3
    order = torch.randperm(blocks, generator=generator).int()
    garbage = GARBAGE if case.poison else 0
    tables = torch.full((seqs, max(1, -(-case.longest // page))), garbage, dtype=torch.int32)
    start = 0
    for s in range(seqs):
        pages = pages_of(case, s)
        tables[s, pages.start : pages.stop] = order[start + pages.start : start + pages.stop]
        start += pages.stop
    return tables, blocks


def caches(case: Case, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the key cache and the value cache with random contents.

    The shape of the key cache is [blocks, kv heads, head size / x, block size, x]. The shape of the value cache is
    [blocks, kv heads, head size, block size]. x is the number of elements in 16 bytes.
    """
    key = case.key
    size = case.kv_heads * key.head_size * key.block_size
    shape = (blocks, size + case.block_gap * key.head_size * key.block_size)
    scales = largest(case.k_scale), largest(case.v_scale)
    k, v = (tiled(pool, shape)[:, :size] for pool in pools(case.seed, key.dtype, key.kv_cache_dtype, scales))
    x = 16 // k.element_size()
    return (
        k.unflatten(1, (case.kv_heads, key.head_size // x, key.block_size, x)),
        v.unflatten(1, (case.kv_heads, key.head_size, key.block_size)),
    )


@functools.lru_cache(maxsize=64)
def pools(seed: int, dtype: str, kv_cache_dtype: str, scales: tuple[float, float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return POOL random numbers for the key cache, and POOL other random numbers for the value cache.

    Each cache consists of repetitions of its POOL numbers.

    scales: the scale of the keys and the scale of the values, by which the numbers in an fp8 or int8 cache are divided.
    """
    numbers = torch.randn(2, POOL, generator=torch.Generator().manual_seed(seed + 2_000_003))
    if kv_cache_dtype == "auto":
        return tuple(numbers.to(getattr(torch, dtype)))
    return tuple(nearest_codes((numbers / torch.tensor(scales).view(2, 1)).double(), kv_cache_dtype))


def largest(scale: Scale) -> float:
    """Return the largest number in ``scale``, which has one number for all KV heads or one number per KV head."""
    return scale if isinstance(scale, float) else max(scale)


def tiled(pool: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return a tensor of the given shape that repeats the POOL numbers in ``pool``, a one-dimensional tensor."""
    count = shape[0] * shape[1]
    return pool.repeat(-(-count // POOL))[:count].view(shape)


def scale_of(scale: Scale) -> float | torch.Tensor:
    """Convert a scale of ``Case`` to a scale of ``Call``: a float, or a float32 tensor [kv heads]."""
    return scale if isinstance(scale, float) else torch.tensor(scale, dtype=torch.float32)


def poison(case: Case, key_cache: torch.Tensor, value_cache: torch.Tensor, tables: torch.Tensor) -> None:
    """Write NaN to all unused blocks, and to the slots after the last token in each sequence's last page.

    An int8 cache cannot store NaN, so this function writes the number 127 instead.
    """
    page = case.key.block_size
    nan = float("nan") if case.key.kv_cache_dtype == "auto" else 0x7F  # a NaN in both fp8 formats, 127 in int8
    owned = set()
    for s in range(len(case.seq_lens)):
        pages, rest = pages_of(case, s), case.attended(s).stop % page
        owned.update(tables[s, pages.start : pages.stop].tolist())
        if pages and rest:
            block = int(tables[s, pages.stop - 1])
            key_cache[block, :, :, rest:] = nan
            value_cache[block, :, :, rest:] = nan
    for block in set(range(key_cache.shape[0])) - owned:
        key_cache[block] = nan
        value_cache[block] = nan


def to(call: Call, device: torch.device) -> Call:
    """Copy all tensors of ``call`` to another device. The copies have the same strides as the originals."""

    def move(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return moved.copy_(value)

    moved = {name: move(value) for name, value in call._asdict().items()}
    moved["tensors"] = tuple(map(move, call.tensors))
    assert call.scratch is not None
    return Call(**moved)._replace(scratch=Scratch(*map(move, call.scratch)))  # type: ignore[arg-type]


def of_heads(call: Call, heads: Sequence[int]) -> Call:
    """Return ``call`` with only the query heads ``heads``. ``call`` must have a single KV head."""
    assert call.scratch is not None and call.key_cache.shape[1] == 1
    return call._replace(
        out=call.out[:, heads],
        scratch=Scratch(*(tensor[:, heads] for tensor in call.scratch)),
        query=call.query[:, heads],
        alibi_slopes=None if call.alibi_slopes is None else call.alibi_slopes[heads],
        sinks=None if call.sinks is None else call.sinks[heads],
        lse=None if call.lse is None else call.lse[:, heads],
    )


def copy_outputs(call: Call) -> Call:
    """Return ``call`` with copies of its output tensors: out, lse and the scratch tensors."""
    assert call.scratch is not None
    lse = None if call.lse is None else call.lse.clone()
    return call._replace(out=call.out.clone(), lse=lse, scratch=Scratch(*(tensor.clone() for tensor in call.scratch)))


def spread(call: Call) -> Call:
    """Return ``call`` with strides of more than 2^31 elements in the query, the caches, the block tables and the
    scratch tensors.

    The new tensors are on the CPU. The gaps between the elements of a new tensor take almost no memory. Raises OSError
    if the system does not grant more address space than it has memory.
    """
    assert call.scratch is not None
    scratch = Scratch(*(far_apart(tensor, axes=3) for tensor in call.scratch))
    return call._replace(
        query=far_apart(call.query, axes=1),
        key_cache=far_apart(call.key_cache, axes=2),
        value_cache=far_apart(call.value_cache, axes=2),
        block_tables=far_apart(call.block_tables, axes=1),
        scratch=scratch,
    )


def far_apart(tensor: torch.Tensor, axes: int) -> torch.Tensor:
    """Return a copy of ``tensor`` with strides of more than 2^31 elements in the first ``axes`` dimensions."""
    inner = tensor[(0,) * axes].contiguous()
    unit = -(-max(inner.numel(), 1) // 512) * 512  # holds the inner elements, and keeps them aligned
    strides = [FAR + unit * excess for excess in EXCESS[:axes]]
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides)) + unit
    flat = reserve(last, tensor.dtype)
    return flat.as_strided(tensor.shape, (*strides, *inner.stride())).copy_(tensor)


def reserve(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of ``count`` zeros that takes memory only where a program accesses it.

    Raises OSError if the system does not grant the address space.
    """
    size = count * torch.empty((), dtype=dtype).element_size()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    return torch.frombuffer(memory, dtype=dtype)


def dense_pieces(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Split a tensor with strides of 2^31 elements or more into parts without such strides.

    Returns pairs (index, part), where the index is a text such as ``[2][0]``. For a tensor without such strides, the
    only pair is an empty text and the tensor itself.
    """
    if all(stride < FAR for size, stride in zip(tensor.shape, tensor.stride()) if size > 1):
        return [("", tensor)]
    return [(f"[{i}]{indices}", piece) for i in range(tensor.shape[0]) for indices, piece in dense_pieces(tensor[i])]
