"""The wave model: estimates the time of a decode call on a GPU from the thread blocks of its grid.

Thread blocks start in the order of the grid. When all places on the multiprocessors are taken, the next thread block
starts as soon as another one ends. The grid has a thread block for each partition that a sequence may have. The grid in
a captured CUDA graph has a thread block for every partition up to max_seq_len, although sequences can be shorter when
the graph is replayed. A thread block past the end of its sequence is *empty*: it only loads the sequence length and
returns.

All times are in this unit: the time in which one multiprocessor processes one token. This module does not import torch,
because the generator, which runs without torch, uses it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..attention.tiling import launched_partitions

if TYPE_CHECKING:
    from .dispatch_row import Row

#: The fixed cost of a partition: starting a thread block and writing its result take the time of this many tokens.
PARTITION_OVERHEAD = 32

#: The reduction is the kernel that merges the results of all partitions. One of its thread blocks loads the results of
#: this many partitions at once (runtime/cuda/pav2_reduce.cuh, for a head size of 64 or more).
REDUCTION_PARTITIONS = 64

#: The time to launch and end the reduction, and the latency of one round of loads, in the unit of this module.
REDUCTION_START, REDUCTION_ROUND = 64, 16

#: A worker is a place for a resident thread block. A pair of numbers describes a group of workers: the time at which
#: they become free, and their number.
Workers = tuple[int, int]


def cost(
    row: Row, num_seqs: int, max_seq_len: int, kv_heads: int, backend: str = "cuda", seq_len: int | None = None
) -> int:
    """Estimate the time of a call with ``num_seqs`` sequences of ``seq_len`` tokens each.

    A thread block processes one partition of one sequence, for a KV head or some of its query heads. The thread blocks
    that are resident on a multiprocessor share its memory bandwidth, and a single thread block can't use the whole
    bandwidth. The estimate assumes this order: all full partitions, then the last, shorter partition of each sequence,
    then the empty thread blocks. An empty thread block needs no bandwidth, but it occupies a place on a multiprocessor
    for the time ``row.empty_tokens``. The last step is the reduction of all partitions that have tokens.

    A PyTorch kernel has no empty thread blocks: in a CUDA graph it computes all partitions up to max_seq_len.

    seq_len: the length of each sequence in tokens. The default is ``max_seq_len``.
    """
    if backend == "cuda" and row.cuda:
        return _cost(row, num_seqs * kv_heads * row.blocks_per_group, max_seq_len, seq_len)
    row = row._replace(resident_blocks=1, saturating_blocks=1, blocks_per_group=1)
    return _cost(row, num_seqs * kv_heads, max_seq_len, None)


def _cost(row: Row, blocks: int, max_seq_len: int, seq_len: int | None) -> int:
    """Estimate the time of a call from the number of its thread blocks. The other arguments are those of ``cost``.

    blocks: the number of thread blocks that process the first partition of every sequence. Every later partition has
    the same number of thread blocks.
    """
    window = row.key.sliding_window
    launched = launched_partitions(max_seq_len, row.partition_size, window)
    length = max_seq_len if seq_len is None else min(seq_len, max_seq_len)
    tokens = length if window is None else min(length, window)  # as if the window began at the start of a partition
    whole = max(0, tokens - 1) // row.partition_size
    working = whole + (tokens > 0)
    processors = max(1, row.multiprocessors)
    resident = max(1, row.resident_blocks)
    side_by_side = max(1, min(resident, -(-blocks * working // processors)))
    slowed = max(side_by_side, row.saturating_blocks)
    workers: Sequence[Workers] = [(0, processors * side_by_side)]
    workers = start(workers, blocks * whole, (row.partition_size + PARTITION_OVERHEAD) * slowed)
    rest = tokens - whole * row.partition_size
    workers = start(workers, blocks * (working - whole), (rest + PARTITION_OVERHEAD) * slowed)
    if launched > working:
        free = processors * (resident - side_by_side)  # places that no working block takes
        workers = start([*workers, (0, free)], blocks * (launched - working), row.empty_tokens)
    return max(time for time, _ in workers) + reduction_cost(launched, working)


def start(workers: Sequence[Workers], blocks: int, duration: int) -> list[Workers]:
    """Give the workers ``blocks`` thread blocks of equal duration, each to the worker that is free first.

    Returns the workers with the times at which they are free again. duration: the time that a thread block takes.

    The computation takes the same number of steps for any number of thread blocks. If thread blocks could be divided,
    the workers would end together, at the time ``level`` (see ``_level``). As many thread blocks as a worker can end
    before ``level`` are given to the worker together. Only the remaining thread blocks are given out one by one.
    """
    waiting = sorted(each for each in workers if each[1])
    if not blocks or not duration:
        return waiting
    level = _level(waiting, blocks * duration)
    rounds = [max(0, level - time) // duration for time, _ in waiting]
    blocks -= sum(count * number for (_, count), number in zip(waiting, rounds))
    waiting = sorted((time + number * duration, count) for (time, count), number in zip(waiting, rounds))
    return list(_one_each(waiting, blocks, duration))


def _level(waiting: Sequence[Workers], work: int) -> int:
    """The time, rounded down, at which the workers would end together if they could divide ``work`` in any way.

    Workers that become free only after that time get no work.

    waiting: the workers, sorted by the time at which they become free. work: the sum of the durations of the thread
    blocks.
    """
    number = 0
    level = 0
    for time, count in waiting:
        if number and level <= time:
            break
        number, work = number + count, work + time * count
        level = work // number
    return level


def _one_each(waiting: Sequence[Workers], blocks: int, duration: int) -> Iterator[Workers]:
    """Give one thread block to each of the first ``blocks`` workers. Yield all workers with the times at which they are
    free again.
    """
    for time, count in waiting:
        busy = min(count, blocks)
        blocks -= busy
        if busy:
            yield time + duration, busy
        if count > busy:
            yield time, count - busy


def reduction_cost(launched: int, working: int) -> int:
    """Estimate the time of the reduction, which is 0 if only one partition is launched.

    launched: the number of partitions in the grid. working: the number of partitions that have tokens.
    """
    if launched <= 1:
        return 0
    return REDUCTION_START + REDUCTION_ROUND * max(1, -(-working // REDUCTION_PARTITIONS))


def cheapest(
    rows: Sequence[Row], num_seqs: int, max_seq_len: int, kv_heads: int, backend: str, captured: bool = False
) -> Row:
    """The dispatch row with the lowest estimated time for a call. Of several rows with the lowest time, the first one
    is chosen.

    A captured CUDA graph is replayed for sequences of any length up to max_seq_len, and different rows are the best for
    different lengths. While a graph is captured, the result is therefore the row with the smallest worst-case slowdown.
    The slowdown at one length is the row's time divided by the best row's time. The worst case is the largest slowdown
    at the lengths max_seq_len, max_seq_len / 2, max_seq_len / 4 and so on.

    captured: whether a CUDA graph is being captured.
    """
    if not captured or len(rows) == 1:
        return min(rows, key=lambda row: cost(row, num_seqs, max_seq_len, kv_heads, backend))
    lengths = [max_seq_len >> halved for halved in range(max(1, max_seq_len.bit_length()))]
    costs = [[cost(row, num_seqs, max_seq_len, kv_heads, backend, length) for length in lengths] for row in rows]
    best = [max(1, min(each)) for each in zip(*costs)]
    ratios = [max(own / least for own, least in zip(each, best)) for each in costs]
    return rows[ratios.index(min(ratios))]
