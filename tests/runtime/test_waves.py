"""The wave model by hand: waves, resident blocks, split groups, the reduction, windows, and empty blocks of a graph."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.runtime.choice.select import Table
from pav2gen.runtime.choice.waves import cheapest, cost, reduction_cost, start

from .test_select import QWEN, row

REDUCTION = 64 + 16  # one round of loads


def test_the_model_fills_the_card_and_counts_the_waves():
    # 16 multiprocessors; 4 KV heads of one sequence of 4096 tokens: 8 partitions of 512 are two waves.
    reduction = 64 + 16  # one round of loads
    assert cost(row(partition=512), 1, 4096, 4) == 2 * (512 + 32) + reduction
    assert cost(row(partition=1024), 1, 4096, 4) == 1 * (1024 + 32) + reduction
    assert cost(row(partition=512, multiprocessors=0), 1, 512, 4) == 4 * (512 + 32)


def test_the_model_knows_resident_blocks_split_groups_and_the_reduction():
    # 64 blocks of 512 tokens on 16 multiprocessors, 2 of them side by side: 2 waves, each at half the speed.
    assert cost(row(partition=512, cuda="k.cu", resident_blocks=2), 2, 4096, 4) == 2 * 2 * (512 + 32) + 80
    # Two blocks reach 2/5 of a multiprocessor's bandwidth where it takes five to saturate it.
    slow = row(partition=512, cuda="k.cu", resident_blocks=2, saturating_blocks=5)
    assert cost(slow, 2, 4096, 4) == 2 * 5 * (512 + 32) + 80
    assert cost(slow, 2, 4096, 4, "torch") == cost(row(partition=512), 2, 4096, 4)  # figures of the CUDA kernel
    split = row(partition=512, cuda="k.cu", blocks_per_group=2)
    assert cost(split, 1, 4096, 4) == 4 * (512 + 32) + 80  # 64 blocks, 16 at a time
    assert [reduction_cost(n, n) for n in (1, 2, 64, 65, 1024)] == [0, 80, 80, 96, 320]


def test_empty_blocks_of_a_captured_graph():
    # A graph for 8192 tokens has 16 partitions of 512 for each of 4 KV heads: 64 blocks. A block of 1024 tokens' worth
    # of work is 4 x 2 blocks, on half of 16 multiprocessors. The 56 empty blocks take 7 rounds of 40 on the other half.
    captured = row(partition=512, cuda="k.cu", empty_tokens=40)
    assert cost(captured, 1, 8192, 4, seq_len=1024) == (512 + 32) + REDUCTION
    # Empty blocks of 400 tokens: 2 rounds on the idle half until 800, one of the other half at 544, and so on. The ends
    # are 400, 800, 944, 1200, 1344, 1600, 1744: 8 blocks each.
    slow = captured._replace(empty_tokens=400)
    assert cost(slow, 1, 8192, 4, seq_len=1024) == 1744 + REDUCTION
    assert cost(slow, 1, 8192, 4) == cost(row(partition=512), 1, 8192, 4)  # no block is empty


def test_empty_blocks_take_the_places_that_no_working_block_takes():
    # 8 working blocks on 16 multiprocessors with 3 places each: one place of each multiprocessor suffices. The other
    # 32 places and the 8 idle multiprocessors take 40 of the 56 empty blocks at 0, and 16 more at 300, until 600.
    captured = row(partition=512, cuda="k.cu", resident_blocks=3, empty_tokens=300)
    assert cost(captured, 1, 8192, 4, seq_len=1024) == 600 + REDUCTION


def test_a_graph_reduces_only_the_partitions_that_have_tokens():
    captured = row(partition=512, cuda="k.cu")
    assert [cost(captured, 1, 65 * 512, 1, seq_len=n) - cost(captured, 1, n, 1) for n in (1024, 64 * 512)] == [0, 0]
    assert cost(captured, 1, 65 * 512, 1, seq_len=512) == 544 + REDUCTION  # a launch of 65 partitions has a reduction
    assert cost(captured, 1, 512, 1, seq_len=512) == 544
    assert [reduction_cost(65, n) for n in (0, 1, 64, 65)] == [80, 80, 80, 96]


def test_sequences_of_no_tokens():
    captured = row(partition=512, cuda="k.cu", empty_tokens=40)
    assert cost(captured, 1, 8192, 4, seq_len=0) == 4 * 40 + REDUCTION  # 64 empty blocks on 16 multiprocessors


def test_a_window_launches_the_partitions_that_it_can_reach():
    # A window of 1024 tokens lies in up to 3 partitions of 512. The third is empty if the window begins at a partition.
    held = row(QWEN._replace(sliding_window=1024), cuda="k.cu", empty_tokens=40)
    assert cost(held, 1, 100_000, 8) == (512 + 32) + 40 + REDUCTION  # 16 blocks, then 8 empty ones
    assert cost(held, 1, 100_000, 8, seq_len=512) == (512 + 32) + REDUCTION  # 16 empty ones on the other 8
    assert cost(held, 1, 1024, 8) == cost(row(cuda="k.cu"), 1, 1024, 8)


def test_a_captured_pytorch_kernel_computes_every_partition():
    held = row(partition=512, empty_tokens=40)
    assert cost(held, 3, 8192, 4, "torch", seq_len=16) == cost(held, 3, 8192, 4, "torch")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=5), st.integers(0, 60),
       st.integers(1, 30))  # fmt: skip
def test_blocks_start_where_a_heap_starts_them(workers, blocks, duration):
    free = [time for time, count in workers for _ in range(count)] or [0]
    found = start([*workers, (0, int(not any(count for _, count in workers)))], blocks, duration)
    heapq.heapify(free)
    for _ in range(blocks):
        heapq.heapreplace(free, free[0] + duration)
    assert sorted(time for time, count in found for _ in range(count)) == sorted(free)


def test_a_graph_takes_the_row_that_is_never_much_slower_than_the_best():
    rows = [row(partition=size, cuda="k.cu", empty_tokens=36) for size in (256, 1024)]
    # 4 KV heads, 262,144 tokens. Of 1 token: 4 working blocks, and 1023 or 255 x 4 empty ones on 16 multiprocessors.
    # 4 of these are busy for 33 tokens, which is less than one empty block.
    small, large = (cost(each, 1, 1 << 18, 4, seq_len=1) for each in rows)
    assert (small, large) == (256 * 36 + REDUCTION, 64 * 36 + REDUCTION)
    assert cheapest(rows, 1, 1 << 18, 4, "cuda", captured=True).partition_size == 1024
    # At 4,096 tokens 256 is better: its 64 blocks take 4 rounds of 288; those of 1024 take one round of 1056.
    assert [cost(each, 1, 4096, 4) for each in rows] == [4 * 288 + REDUCTION, 1056 + REDUCTION]


@pytest.mark.parametrize("length", [1, 1000, 4096, 1 << 18])
@pytest.mark.parametrize("num_seqs", [1, 16])
def test_the_worst_ratio_of_a_captured_choice_is_the_least(length, num_seqs):
    rows = [row(partition=size, cuda="k.cu", empty_tokens=36) for size in (128, 256, 512, 1024)]
    lengths = [length // 2**halved for halved in range(19) if length // 2**halved]

    def worst(held):
        def at(each, tokens):
            return cost(each, num_seqs, length, 4, seq_len=tokens)

        return max(at(held, tokens) / min(at(each, tokens) for each in rows) for tokens in lengths)

    chosen = Table(rows).choose(QWEN, "cuda", num_seqs, length, 4, captured=True)
    assert worst(chosen) == min(map(worst, rows))


def test_captured_and_other_calls_are_remembered_apart():
    rows = [row(partition=size, cuda="k.cu", empty_tokens=400) for size in (256, 4096)]
    table = Table(rows)
    for _ in range(2):
        sizes = [table.choose(QWEN, "cuda", 1, 16384, 1, captured=captured).partition_size for captured in (0, 1)]
        assert sizes == [256, 4096]
