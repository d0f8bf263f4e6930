"""The cut of a call: everything is covered once, the budget holds, and the counts are those of the loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.runtime.tiling import Budget, Tiling

sizes = st.integers(1, 300)


@st.composite
def budgets(draw):
    costs = [draw(st.integers(1, 50_000)) for _ in range(4)]
    return Budget(draw(st.integers(1, 1 << 23)), draw(st.integers(1, 1 << 23)), *costs)


@given(budgets(), st.integers(1, 400), st.integers(1, 100_000), st.integers(1, 40), st.sampled_from([64, 512, 2048]))
def test_every_item_is_worked_on_once(budget, num_seqs, max_seq_len, kv_heads, partition):
    tiling = budget.fit(num_seqs, max_seq_len, kv_heads, partition)
    assert tiling.partitions * partition >= max_seq_len > (tiling.partitions - 1) * partition
    seen = [s for tile in tiling.row_tiles() for s in range(tile.start, tile.stop)]
    assert seen == list(range(num_seqs))
    seen = [p for tile in tiling.part_tiles() for p in range(tile.start, tile.stop)]
    assert seen == list(range(tiling.partitions))
    items = torch.arange(tiling.rows * tiling.parts)
    chunks = [first for first, _ in tiling.chunks(items, items)]
    assert max(map(len, chunks)) <= tiling.chunk and torch.equal(torch.cat(chunks), items)


@given(budgets(), st.integers(1, 400), st.integers(1, 100_000), st.integers(1, 40), st.sampled_from([64, 512, 2048]))
def test_the_budget_holds_unless_one_item_exceeds_it(budget, num_seqs, max_seq_len, kv_heads, partition):
    tiling = budget.fit(num_seqs, max_seq_len, kv_heads, partition)
    chunk = tiling.chunk * kv_heads * budget.chunk_item
    assert chunk <= budget.chunk or tiling.chunk == 1
    item = kv_heads * budget.segment_item + budget.item
    segment = tiling.rows * (tiling.parts * item + kv_heads * budget.row)
    assert segment <= budget.segment or tiling.rows == tiling.parts == 1


@given(budgets(), st.integers(1, 400), st.integers(1, 20_000), st.integers(1, 40))
def test_counts_are_those_of_the_loops(budget, num_seqs, max_seq_len, kv_heads):
    tiling = budget.fit(num_seqs, max_seq_len, kv_heads, 64)
    rows = segments = chunks = 0
    for row in tiling.row_tiles():
        rows += 1
        for part in tiling.part_tiles():
            segments += 1
            chunks += len(list(tiling.chunks(torch.empty((row.stop - row.start) * (part.stop - part.start)))))
    assert tiling.counts() == (rows, segments, chunks)


def test_all_sequences_are_worked_on_at_once_while_they_fit():
    budget = Budget(chunk=100, segment=1000, chunk_item=10, segment_item=10, item=0, row=5)
    assert budget.fit(8, 640, 1, 64) == Tiling(num_seqs=8, partitions=10, rows=8, parts=10, chunk=10)
    assert budget.fit(8, 6400, 1, 64) == Tiling(num_seqs=8, partitions=100, rows=8, parts=12, chunk=10)
    assert budget.fit(1000, 64, 1, 64) == Tiling(num_seqs=1000, partitions=1, rows=66, parts=1, chunk=10)


def test_segments_are_of_even_size():
    budget = Budget(chunk=10, segment=100, chunk_item=10, segment_item=1, item=0, row=0)
    assert budget.fit(1, 101, 1, 1).parts == 51


@pytest.mark.parametrize("num_seqs", [1, 7, 256])
@pytest.mark.parametrize("max_seq_len", [1, 512, 100_000])
def test_a_budget_of_nothing_still_makes_progress(num_seqs, max_seq_len):
    tiling = Budget(1, 1, 1000, 1000, 1000, 1000).fit(num_seqs, max_seq_len, 4, 512)
    assert (tiling.rows, tiling.parts, tiling.chunk) == (1, 1, 1)
