"""Estimates the time of a decode call on a GPU from the order in which the thread blocks of the grid run.

Thread blocks start in the order of the grid. If all multiprocessors are full, the next thread block starts as soon as
another thread block ends. The grid has a thread block for each partition that a sequence of max_seq_len tokens may
have. A captured CUDA graph can be replayed with sequences shorter than max_seq_len. A thread block is empty if the
block's partition begins past the end of the sequence. An empty thread block loads the sequence length and returns.

The unit of all times is the time in which one multiprocessor processes one token. This module does not import torch,
because the generator runs without torch and also uses this module.
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
    """Estimate the time of a decode call with ``num_seqs`` sequences of ``seq_len`` tokens each.

    The unit is the time in which one multiprocessor processes one token. A thread block processes one partition of one
    sequence, for a KV head or some query heads of a KV head. The thread blocks on a multiprocessor share the
    multiprocessor's memory bandwidth, and a single thread block cannot use the whole bandwidth.

    In the estimate, the thread blocks of full partitions run first. The thread blocks of the last, shorter partition of
    each sequence run next. Empty thread blocks, whose partitions begin past the end of the sequence, run after all
    other thread blocks. An empty thread block needs no bandwidth, but occupies a place on a multiprocessor for the time
    ``row.empty_tokens``. The last step is the reduction kernel, which merges all partitions that have tokens.

    In a CUDA graph, a PyTorch kernel computes all partitions up to max_seq_len. The estimate for a PyTorch kernel
    therefore has no empty thread blocks.

    seq_len: the length of each sequence in tokens; the default is ``max_seq_len``.
    """
    if backend == "cuda" and row.cuda:
        return _cost(row, num_seqs * kv_heads * row.blocks_per_group, max_seq_len, seq_len)
    row = row._replace(resident_blocks=1, saturating_blocks=1, blocks_per_group=1)
    return _cost(row, num_seqs * kv_heads, max_seq_len, None)


def _cost(row: Row, blocks: int, max_seq_len: int, seq_len: int | None) -> int:
    """Estimate the time of a call as ``cost`` does, but from a number of thread blocks instead of sequences and heads.

    blocks: the number of thread blocks that process the first partition of every sequence. Each later partition has the
    same number of thread blocks.
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
    """Run ``blocks`` thread blocks of equal duration on the workers, and return when each worker is free again.

    A worker is a place for one resident thread block on a multiprocessor. Each thread block runs on the worker that
    becomes free first.

    The computation takes the same number of steps for any number of thread blocks. If thread blocks could be divided,
    all workers would end at the time ``level`` (see ``_level``). The function first gives each worker as many thread
    blocks as end before ``level``. The function then gives the remaining thread blocks to one worker each.

    workers: groups of workers, each with the time at which the workers become free and the number of workers.
    duration: the time of one thread block.
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
    """Return the time, rounded down, at which all workers would end together if ``work`` could be divided in any way.

    A worker is a place for one thread block on a multiprocessor. Workers that become free after the returned time get
    no work.

    waiting: groups of workers, sorted by the time at which the workers become free.
    work: the sum of the durations of all thread blocks.
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
    """Run one thread block on each of the first ``blocks`` workers, and yield when all workers are free again.

    A worker is a place for one thread block on a multiprocessor.

    waiting: groups of workers, sorted by the time at which the workers become free.
    duration: the time of one thread block.
    """
    for time, count in waiting:
        busy = min(count, blocks)
        blocks -= busy
        if busy:
            yield time + duration, busy
        if count > busy:
            yield time, count - busy


def reduction_cost(launched: int, working: int) -> int:
    """Estimate the time of the reduction kernel, which merges partitions. The time is 0 if the grid has one partition.

    launched: the number of partitions in the grid.
    working: the number of partitions that have tokens.
    """
    if launched <= 1:
        return 0
    return REDUCTION_START + REDUCTION_ROUND * max(1, -(-working // REDUCTION_PARTITIONS))


def cheapest(
    rows: Sequence[Row], num_seqs: int, max_seq_len: int, kv_heads: int, backend: str, captured: bool = False
) -> Row:
    """Return the dispatch row with the shortest estimated time for a call, or the first of several such rows.

    During CUDA graph capture, the function minimizes the largest slowdown instead of the time. The reason is that a
    captured graph is replayed for sequences of any length up to max_seq_len. Different rows are the fastest for
    different lengths. The slowdown of a row at one length is the row's time divided by the fastest row's time. The
    function compares the slowdowns at the lengths max_seq_len, max_seq_len / 2, max_seq_len / 4 and so on.

    captured: whether a CUDA graph is being captured.
    """
    if not captured or len(rows) == 1:
        return min(rows, key=lambda row: cost(row, num_seqs, max_seq_len, kv_heads, backend))
    lengths = [max_seq_len >> halved for halved in range(max(1, max_seq_len.bit_length()))]
    costs = [[cost(row, num_seqs, max_seq_len, kv_heads, backend, length) for length in lengths] for row in rows]
    best = [max(1, min(each)) for each in zip(*costs)]
    ratios = [max(own / least for own, least in zip(each, best)) for each in costs]
    return rows[ratios.index(min(ratios))]
