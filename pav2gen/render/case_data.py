"""Chooses the input sizes of generated tests, such as sequence lengths, and the numbers of ATen calls that the tests
expect.
"""

from __future__ import annotations

from typing import NamedTuple

from pav2gen.family.modifications.tree import INTEGER, walk
from pav2gen.family.variant import AttentionVariant, ExtendVariant, Variant
from pav2gen.plan.kernel import AnyKernel, Extender, Kernel

#: The number of full partitions in a sequence for which the reduction over partitions needs two rounds. A round merges
#: 64 partitions. For a head size of at most 32, a round merges 128 partitions, and the sequence has twice as many.
LONG_PARTITIONS = 66


#: The longest distance in a mask, in tokens, for which tests have shorter and longer sequences. With longer distances,
#: tests would be slow.
LONGEST_DISTANCE = 8192

#: The longest sliding window, in tokens, for which tests have queries with more tokens than the window. With longer
#: windows, tests would be slow.
LONGEST_INNER_WINDOW = 256


class SparsePattern(NamedTuple):
    """The arguments of a decode call that describe a block-sparse pattern, in the order of
    ``runtime.call.BlockSparse``.
    """

    local_blocks: int
    vert_stride: int
    block_size: int
    head_sliding_step: int
    tp_rank: int


class CaseData(NamedTuple):
    """The input sizes and expected numbers for the tests of a decode kernel. Templates receive this object as the
    variable ``data``.

    boundary_lengths: sequence lengths in tokens, from the function ``boundary_lengths``.
    long_length: the length, in tokens, of a sequence that needs a second round of the reduction over partitions.
    sparse_patterns: the block-sparse patterns that the tests pass to a block-sparse kernel.
    calls_by_sequences: pairs (number of sequences, expected number of ATen calls), from the function
    ``calls_by_sequences``.
    """

    boundary_lengths: list[int]
    long_length: int
    sparse_patterns: list[SparsePattern]
    calls_by_sequences: list[tuple[int, int]]


class ExtendData(NamedTuple):
    """The input sizes and expected numbers for the tests of an extend kernel. Templates receive this object as the
    variable ``data``.

    windows: the batches for tests of the sliding window; an empty list for a kernel without one. A batch is a pair of
    lists with an item for each sequence: the numbers of query tokens, and the numbers of context tokens. The context of
    a sequence is the tokens before the query.
    distances: the distances between tokens, in tokens, that the mask of the kernel's modification may contain (see
    ``mask_distances``).
    calls: the batches for tests of the number of ATen calls. Each is a tuple (number of sequences, query tokens per
    sequence, context tokens per sequence, expected number of ATen calls).
    """

    windows: list[tuple[list[int], list[int]]]
    distances: list[int]
    calls: list[tuple[int, int, int, int]]


def data_of(kernel: AnyKernel) -> CaseData | ExtendData | None:
    """Return the input sizes and expected numbers for the tests of ``kernel``, or None for a cache writer."""
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
    """Return sequence lengths in tokens, for tests at the boundaries of pages, partitions, windows and masks.

    The boundaries are 0, a page, a partition, a partition plus a page, and two partitions. For a kernel with a sliding
    window, three more are the window, the window plus a page, and the window plus a partition. For each distance from
    ``mask_distances``, two more are the distance, and the distance plus a page. The result contains each boundary, and
    the lengths one token below and one token above the boundary.
    """
    page, partition, window = variant.block_size, variant.partition_size, variant.sliding_window
    edges = [0, page, partition, partition + page, 2 * partition]
    if window is not None:
        edges += [window, window + page, window + partition]
    for distance in mask_distances(variant):
        edges += [distance, distance + page]
    return sorted({max(0, edge + step) for edge in edges for step in (-1, 0, 1)})


def long_length(variant: Variant) -> int:
    """Return the length, in tokens, of a sequence for which the reduction over partitions needs a second round. The
    last page of the sequence is not full.
    """
    partitions = LONG_PARTITIONS * (2 if variant.head_size <= 32 else 1)
    return partitions * variant.partition_size + variant.block_size + 3


def extend_windows(variant: ExtendVariant) -> list[tuple[list[int], list[int]]]:
    """Return the batches for tests of the sliding window, in the form of ``ExtendData.windows``.

    In the first batch, the queries are short, and the window hides keys from the queries. In the second batch, the
    queries have at least as many tokens as the window. Windows over ``LONGEST_INNER_WINDOW`` tokens have no second
    batch.
    """
    window, page = variant.sliding_window, variant.block_size
    if window is None:
        return []
    batches = [([5, 3, 4], [max(0, window - 3), window + page, 3 * page + window + 1])]
    if window <= LONGEST_INNER_WINDOW:
        batches.append(([window + 5, 2 * window + 1, window], [0, page + 3, 1]))
    return batches


def extend_calls(kernel: Extender) -> list[tuple[int, int, int, int]]:
    """Return the batches for tests of the number of ATen calls, in the form of ``ExtendData.calls``.

    The expected numbers are for a CPU and two KV heads.
    """
    keys, page = kernel.p.torch.keys, kernel.v.block_size
    batches = [(1, 1, page), (3, 4, keys + page), (40, 2, 5), (1, kernel.p.torch.cpu_tile + 1, keys)]
    return [(n, new, old, kernel.p.torch.calls(n, n * new, new, old + new, 2)) for n, new, old in batches]


def mask_distances(variant: AttentionVariant) -> list[int]:
    """Return the distances between tokens, in tokens, that the mask of the kernel's modification may contain, sorted.

    The distances are the integers from 2 to ``LONGEST_DISTANCE`` in the expression of the mask. Without a mask, the
    result is empty.
    """
    mask = variant.own.mask_tree if variant.own else None
    integers = {int(node.value) for node in walk(mask) if node.is_literal and node.type == INTEGER} if mask else set()
    return sorted(value for value in integers if 2 <= value <= LONGEST_DISTANCE)


def sparse_patterns(page: int) -> list[SparsePattern]:
    """Return block-sparse patterns for tests. ``page`` is the number of tokens in a page."""
    return [
        SparsePattern(local_blocks=1, vert_stride=2, block_size=page, head_sliding_step=0, tp_rank=0),
        SparsePattern(local_blocks=0, vert_stride=4, block_size=2 * page, head_sliding_step=1, tp_rank=0),
        SparsePattern(local_blocks=2, vert_stride=3, block_size=4 * page, head_sliding_step=2, tp_rank=1),
        SparsePattern(local_blocks=1, vert_stride=5, block_size=page, head_sliding_step=1, tp_rank=1),
        SparsePattern(local_blocks=1, vert_stride=3, block_size=page, head_sliding_step=-1, tp_rank=1),
    ]


def calls_by_sequences(kernel: Kernel) -> list[tuple[int, int]]:
    """Return pairs (number of sequences, expected number of ATen calls of a decode call).

    The expected numbers are for a CPU, one KV head, and sequences of two partitions.
    """
    v, p = kernel
    tokens, budget = v.partition_size + 1, p.torch.cpu
    lengths = [p.torch.lengths(n, tokens) for n in (1, 2, 16, 256)]
    tilings = (budget.fit(each, 1, v.partition_size, v.block_size, known=False) for each in lengths)
    return [(len(each), p.torch.calls(tiling)) for each, tiling in zip(lengths, tilings, strict=True)]
