"""Chooses the data of generated tests: sequence lengths, block-sparse patterns, and expected numbers of ATen calls."""

from __future__ import annotations

from typing import NamedTuple

from pav2gen.family.modifications.tree import INTEGER, walk
from pav2gen.family.variant import AttentionVariant, ExtendVariant, Variant
from pav2gen.plan.kernel import AnyKernel, Extender, Kernel

#: The number of full partitions in the long sequence of a kernel's tests. The reduction merges 64 partitions at a time,
#: so it needs a second round. (With a head size of at most 32, it merges 128 at a time, and the sequence has twice as
#: many partitions.)
LONG_PARTITIONS = 66


#: Tests have sequences shorter and longer than each distance in a mask, if the distance is at most this many tokens.
#: Larger distances would make the tests slow.
LONGEST_DISTANCE = 8192

#: Tests have more new tokens than a sliding window, if the window has at most this many tokens. Larger windows would
#: make the tests slow.
LONGEST_INNER_WINDOW = 256


class SparsePattern(NamedTuple):
    """The block-sparse arguments of a call, in the order of ``runtime.call.BlockSparse``."""

    local_blocks: int
    vert_stride: int
    block_size: int
    head_sliding_step: int
    tp_rank: int


class CaseData(NamedTuple):
    """The data of a decode kernel's tests. Templates call this object ``data``.

    ``boundary_lengths`` and ``long_length`` are sequence lengths in tokens. ``calls_by_sequences`` has pairs (number of
    sequences, expected number of ATen calls).
    """

    boundary_lengths: list[int]
    long_length: int
    sparse_patterns: list[SparsePattern]
    calls_by_sequences: list[tuple[int, int]]


class ExtendData(NamedTuple):
    """The data of an extend kernel's tests. Templates call this object ``data``.

    windows: batches for a sliding window; empty without a window. A batch is a pair of lists, with one number of tokens
    per sequence: query lengths, and context lengths before the query.
    distances: context lengths in tokens, near the distances in the modification's mask.
    calls: (number of sequences, query tokens per sequence, context per sequence, expected number of ATen calls).
    """

    windows: list[tuple[list[int], list[int]]]
    distances: list[int]
    calls: list[tuple[int, int, int, int]]


def data_of(kernel: AnyKernel) -> CaseData | ExtendData | None:
    """The data of the generated tests of ``kernel``. None for an operator with tests that need no data."""
    if isinstance(kernel, Extender):
        return ExtendData(extend_windows(kernel.v), mask_distances(kernel.v), extend_calls(kernel))
    if not isinstance(kernel, Kernel):
        return None
    return CaseData(
        boundary_lengths(kernel.v),
        long_length(kernel.v),
        sparse_patterns(kernel.v.block_size),
        calls_by_sequences(kernel),
    )


def boundary_lengths(variant: Variant) -> list[int]:
    """Sequence lengths in tokens: 0, a page, a partition, a partition plus a page, two partitions, and each of these
    plus and minus one token.

    With a sliding window, also lengths near the window, the window plus a page, and the window plus a partition. With a
    modification, also lengths near the distances in its mask.
    """
    page, partition, window = variant.block_size, variant.partition_size, variant.sliding_window
    edges = [0, page, partition, partition + page, 2 * partition]
    if window is not None:
        edges += [window, window + page, window + partition]
    for distance in mask_distances(variant):
        edges += [distance, distance + page]
    return sorted({max(0, edge + step) for edge in edges for step in (-1, 0, 1)})


def long_length(variant: Variant) -> int:
    """The length in tokens of a sequence with enough partitions for a second round of the reduction. The last page is
    not full.
    """
    partitions = LONG_PARTITIONS * (2 if variant.head_size <= 32 else 1)
    return partitions * variant.partition_size + variant.block_size + 3


def extend_windows(variant: ExtendVariant) -> list[tuple[list[int], list[int]]]:
    """Batches of query and context lengths, for tests of a sliding window.

    In the first sequence of the first batch, the window hides keys from only the last query tokens. In the other
    sequences of this batch, the window hides keys from all query tokens. The second batch is only for short windows:
    for its last query tokens, the window begins among the query tokens.
    """
    window, page = variant.sliding_window, variant.block_size
    if window is None:
        return []
    batches = [([5, 3, 4], [max(0, window - 3), window + page, 3 * page + window + 1])]
    if window <= LONGEST_INNER_WINDOW:
        batches.append(([window + 5, 2 * window + 1, window], [0, page + 3, 1]))
    return batches


def extend_calls(kernel: Extender) -> list[tuple[int, int, int, int]]:
    """Batches of equal sequences with the expected number of ATen calls, on a CPU with two KV heads, as in
    ``ExtendData.calls``.
    """
    keys, page = kernel.p.torch.keys, kernel.v.block_size
    batches = [(1, 1, page), (3, 4, keys + page), (40, 2, 5), (1, kernel.p.torch.cpu_tile + 1, keys)]
    return [(n, new, old, kernel.p.torch.calls(n, n * new, new, old + new, 2)) for n, new, old in batches]


def mask_distances(variant: AttentionVariant) -> list[int]:
    """The integers in the mask of the kernel's modification that may be distances between tokens.

    Tests use sequences that are shorter and longer than each distance.
    """
    mask = variant.own.mask_tree if variant.own else None
    integers = {int(node.value) for node in walk(mask) if node.is_literal and node.type == INTEGER} if mask else set()
    return sorted(value for value in integers if 2 <= value <= LONGEST_DISTANCE)


def sparse_patterns(page: int) -> list[SparsePattern]:
    """Block-sparse patterns that together vary every argument. ``page`` is the number of tokens in a page."""
    return [
        SparsePattern(local_blocks=1, vert_stride=2, block_size=page, head_sliding_step=0, tp_rank=0),
        SparsePattern(local_blocks=0, vert_stride=4, block_size=2 * page, head_sliding_step=1, tp_rank=0),
        SparsePattern(local_blocks=2, vert_stride=3, block_size=4 * page, head_sliding_step=2, tp_rank=1),
        SparsePattern(local_blocks=1, vert_stride=5, block_size=page, head_sliding_step=1, tp_rank=1),
        SparsePattern(local_blocks=1, vert_stride=3, block_size=page, head_sliding_step=-1, tp_rank=1),
    ]


def calls_by_sequences(kernel: Kernel) -> list[tuple[int, int]]:
    """Pairs (number of sequences, expected number of ATen calls), for calls on a CPU with one KV head and two
    partitions.
    """
    v, p = kernel
    tokens, budget = v.partition_size + 1, p.torch.cpu
    lengths = [p.torch.lengths(n, tokens) for n in (1, 2, 16, 256)]
    tilings = (budget.fit(each, 1, v.partition_size, v.block_size, known=False) for each in lengths)
    return [(len(each), p.torch.calls(tiling)) for each, tiling in zip(lengths, tilings, strict=True)]
