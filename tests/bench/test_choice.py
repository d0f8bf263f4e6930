"""The choice of a partition size: the wave model is a schedule carried out, and its best is what is chosen."""

import heapq
import math
import random

from hypothesis import given
from hypothesis import strategies as st

from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.choice.select import Table
from pav2gen.runtime.choice.waves import PARTITION_OVERHEAD, cost

KEY = Key(256, 6, 16, "float16", "auto", False, False)
SIZES = (64, 128, 256, 512, 1024, 2048)
WORKERS = (0, 1, 16, 40, 80, 108, 132)


def row(partition, workers, **cuda):
    """A row with both kernels; cuda: the figures of the CUDA kernel."""
    return Row(f"p{partition}", "a", KEY, partition, "m", "c", 0, 0, workers, 64, **cuda)


def schedule(row, num_seqs, max_seq_len, kv_heads, seq_len=None):
    """When the last block ends, if one starts as soon as another is done, in the order of the grid; and the reduction.

    A multiprocessor works on ``resident_blocks`` side by side if there are so many; each has its part of the bandwidth.
    The grid has the partitions of ``max_seq_len``; those beyond ``seq_len`` are empty.
    """
    seq_len = max_seq_len if seq_len is None else seq_len
    partitions = math.ceil(max_seq_len / row.partition_size)
    lengths = [min(row.partition_size, seq_len - p * row.partition_size) for p in range(partitions)]
    working = [length for length in lengths if length > 0]
    processors, blocks = max(1, row.multiprocessors), num_seqs * kv_heads * row.blocks_per_group
    side_by_side = min(row.resident_blocks, math.ceil(blocks * len(working) / processors))
    free = [0] * (processors * side_by_side)
    for length in working:  # partitions vary slowest in the grid
        for _ in range(blocks):
            time = (length + PARTITION_OVERHEAD) * max(side_by_side, row.saturating_blocks)
            heapq.heapreplace(free, free[0] + time)
    for _ in range(processors * (row.resident_blocks - side_by_side)):
        heapq.heappush(free, 0)
    for _ in range(blocks * (len(lengths) - len(working))):
        heapq.heapreplace(free, free[0] + row.empty_tokens)
    return max(free) + (64 + 16 * math.ceil(len(working) / 64) if partitions > 1 else 0)


FIGURES = st.builds(
    dict,
    resident_blocks=st.integers(1, 8),
    saturating_blocks=st.integers(1, 8),
    blocks_per_group=st.integers(1, 4),
    empty_tokens=st.integers(0, 500),
)


@given(
    st.sampled_from(SIZES),
    st.sampled_from(WORKERS),
    st.integers(1, 64),
    st.integers(1, 8192),
    st.floats(0, 1),
    st.integers(1, 16),
    FIGURES,
)
def test_the_model_is_what_a_schedule_takes(partition, workers, num_seqs, max_seq_len, share, kv_heads, figures):
    held = row(max(partition, max_seq_len // 32), workers, **figures)
    problem = held, num_seqs, max_seq_len, kv_heads
    assert cost(*problem) == schedule(*problem)
    replayed = max(1, round(share * max_seq_len))
    assert cost(*problem, seq_len=replayed) == schedule(*problem, replayed)


def problems(count):
    """Random problems: partition sizes, workers, sequences, length, KV heads."""
    generator = random.Random(20)
    for _ in range(count):
        sizes = generator.sample(SIZES, generator.randint(2, len(SIZES)))
        num_seqs = generator.choice([1, 2, 8, 32, generator.randint(1, 256)])
        length = round(2 ** generator.uniform(0, 18))
        yield sizes, generator.choice(WORKERS), num_seqs, length, generator.choice([1, 2, 4, 8, 16, 32])


def test_the_choice_is_the_best_of_all_for_10000_problems():
    for sizes, workers, num_seqs, length, kv_heads in problems(10_000):
        rows = [row(size, workers) for size in sizes]
        chosen = Table(rows).choose(KEY, "torch", num_seqs, length, kv_heads)
        best = min(cost(each, num_seqs, length, kv_heads) for each in rows)
        assert cost(chosen, num_seqs, length, kv_heads) <= 1.05 * best


def test_the_choice_is_the_best_of_schedules_that_are_carried_out():
    tried = 0
    for sizes, workers, num_seqs, length, kv_heads in problems(600):
        if num_seqs * kv_heads * length / min(sizes) < 3000:
            rows = [row(size, workers) for size in sizes]
            taken = {each.partition_size: schedule(each, num_seqs, length, kv_heads) for each in rows}
            chosen = Table(rows).choose(KEY, "torch", num_seqs, length, kv_heads)
            assert taken[chosen.partition_size] == min(taken.values())
            tried += 1
    assert tried > 200
