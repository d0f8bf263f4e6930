"""The wave model: estimates the time of a decode call on a GPU from the thread blocks of its grid.

The blocks start in the order of the grid, and a block starts as soon as another one ends. The grid has one block for
each partition that the launch must expect. If a CUDA graph is captured, that is every partition of max_seq_len. A later
replay can have shorter sequences. Their blocks past the end are *empty*: such a block loads the length and returns.

The unit of time is the time in which one multiprocessor processes one token. This module is pure Python, because the
generator uses it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .tiling import launched_partitions

if TYPE_CHECKING:
    from .dispatch_row import Row

#: The fixed cost of a partition: starting a thread block and writing its result take the time of this many tokens.
PARTITION_OVERHEAD = 32

#: A thread block of the reduction loads this many partitions together (runtime/cuda/pav2_reduce.cuh, head size 64 up).
REDUCTION_PARTITIONS = 64

#: The time of the reduction, in tokens of one multiprocessor: its launch and end, and the latency of a round of loads.
REDUCTION_START, REDUCTION_ROUND = 64, 16

#: Workers of one kind: the time at which they become free, and their number.
Workers = tuple[int, int]


def cost(
    row: Row, num_seqs: int, max_seq_len: int, kv_heads: int, backend: str = "cuda", seq_len: int | None = None
) -> int:
    """Estimate the time of a call with ``num_seqs`` sequences of ``seq_len`` tokens each, by default ``max_seq_len``.

    A thread block processes one (sequence, KV head, partition), or some query heads of it. The blocks that are resident
    on a multiprocessor share its bandwidth, but a single block can't use all of it. First come all whole partitions,
    then the last, shorter partition of each sequence, then the empty blocks. An empty block needs no bandwidth, but it
    takes the place of a resident block for ``row.empty_tokens``. Finally the partitions that have tokens are reduced.

    A PyTorch kernel has no empty blocks. A captured one computes every partition of max_seq_len.
    """
    if backend == "cuda" and row.cuda:
        return _cost(row, num_seqs * kv_heads * row.blocks_per_group, max_seq_len, seq_len)
    row = row._replace(resident_blocks=1, saturating_blocks=1, blocks_per_group=1)
    return _cost(row, num_seqs * kv_heads, max_seq_len, None)


def _cost(row: Row, blocks: int, max_seq_len: int, seq_len: int | None) -> int:
    """The cost of a call that has ``blocks`` thread blocks for each partition."""
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
    """Start ``blocks`` equal blocks, each on the worker that is free first. Returns when the workers are free again.

    The number of steps does not depend on the number of blocks. ``level`` is the time at which all would be done if
    blocks could be divided. The blocks that end until then surely start before all others.
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
    """The time at which workers, sorted by time, would end ``work`` if they could share it evenly. Rounded down."""
    number = 0
    level = 0
    for time, count in waiting:
        if number and level <= time:
            break
        number, work = number + count, work + time * count
        level = work // number
    return level


def _one_each(waiting: Sequence[Workers], blocks: int, duration: int) -> Iterator[Workers]:
    """Start one block on each of the first workers, as long as there are blocks."""
    for time, count in waiting:
        busy = min(count, blocks)
        blocks -= busy
        if busy:
            yield time + duration, busy
        if count > busy:
            yield time, count - busy


def reduction_cost(launched: int, working: int) -> int:
    """The time of the reduction of ``working`` partitions. A launch of a single partition needs no reduction."""
    if launched <= 1:
        return 0
    return REDUCTION_START + REDUCTION_ROUND * max(1, -(-working // REDUCTION_PARTITIONS))


def cheapest(
    rows: Sequence[Row], num_seqs: int, max_seq_len: int, kv_heads: int, backend: str, captured: bool = False
) -> Row:
    """The row of the lowest cost for a call. Among equal rows it is the first.

    captured: whether a CUDA graph is captured. The graph is replayed for sequences of any length up to max_seq_len, so
    no row is the cheapest for all. The result is the row that is never much slower than the best one: the row with the
    smallest ratio to the best cost of a length, at the length where this ratio is largest. The lengths are max_seq_len
    and its halves.
    """
    if not captured or len(rows) == 1:
        return min(rows, key=lambda row: cost(row, num_seqs, max_seq_len, kv_heads, backend))
    lengths = [max_seq_len >> halved for halved in range(max(1, max_seq_len.bit_length()))]
    costs = [[cost(row, num_seqs, max_seq_len, kv_heads, backend, length) for length in lengths] for row in rows]
    best = [max(1, min(each)) for each in zip(*costs)]
    ratios = [max(own / least for own, least in zip(each, best)) for each in costs]
    return rows[ratios.index(min(ratios))]
