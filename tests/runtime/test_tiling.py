"""The cut of a call: everything is covered once, the budget holds, and the counts are those of the loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.runtime.attention.tiling import Budget, RowTile, Tile

PAGE = 16


@st.composite
def budgets(draw):
    costs = [draw(st.integers(1, 2_000)) for _ in range(5)]
    padding = draw(st.sampled_from([0, 1 << 15, 1 << 22]))
    return Budget(draw(st.integers(1, 1 << 23)), draw(st.integers(1, 1 << 23)), padding, *costs)


@st.composite
def batches(draw):
    """Lengths of a batch: all the same, all different, or a few long ones among short ones."""
    longest = draw(st.integers(1, 20_000))
    lengths = st.one_of(st.integers(0, longest), st.integers(0, min(longest, 40)), st.just(longest))
    return draw(st.lists(lengths, min_size=1, max_size=40))


partitions = st.sampled_from([64, 512, 2048])
heads = st.integers(1, 40)


def in_order(tiling, lengths):
    """The lengths in the order of the tiling."""
    return sorted(lengths, reverse=True) if tiling.ordered else list(lengths)


def covered_pages(row_tile, whole):
    """For each sequence of a row tile, the pages of its tiles in the order of the loops."""
    found = [[] for _ in range(row_tile.rows.start, row_tile.rows.stop)]
    for tile in row_tile.tiles:
        assert tile.pages == whole or tile.num_parts == 1
        start = tile.parts.start * whole
        for row in range(tile.rows):
            found[row] += range(start, start + (tile.num_parts - 1) * whole + tile.pages)
    return found


@given(budgets(), batches(), heads, partitions, st.booleans())
def test_every_page_is_read_once(budget, lengths, kv_heads, partition, known):
    if not known:
        lengths = [max(1, *lengths)] * len(lengths)
    tiling = budget.fit(lengths, kv_heads, partition, PAGE, known=known)
    rows = [s for row_tile in tiling.row_tiles for s in range(row_tile.rows.start, row_tile.rows.stop)]
    assert rows == list(range(len(lengths)))
    whole = partition // PAGE
    pages = [pages for row_tile in tiling.row_tiles for pages in covered_pages(row_tile, whole)]
    for length, found in zip(in_order(tiling, lengths), pages):
        assert found == list(range(len(found)))  # from the first one on, each once
        assert len(found) * PAGE >= length
        assert -(-len(found) // whole) >= tiling.covered


@given(budgets(), batches(), heads, partitions)
def test_chunks_are_runs_of_a_tile_s_items(budget, lengths, kv_heads, partition):
    for tile in budget.fit(lengths, kv_heads, partition, PAGE, known=True).tiles():
        items = torch.arange(tile.items)
        chunks = list(tile.chunks(items, None, items.repeat_interleave(3)))
        assert all(torch.equal(first.repeat_interleave(3), second) for first, _, second in chunks)
        assert len(list(tile.tails())) == len(chunks)
        assert max(len(first) for first, _, _ in chunks) <= tile.chunk
        assert torch.equal(torch.cat([first for first, _, _ in chunks]), items)
        assert all(nothing is None for _, nothing, _ in chunks)


@given(budgets(), batches(), heads, partitions)
def test_the_budget_holds_unless_one_item_exceeds_it(budget, lengths, kv_heads, partition):
    for tile in budget.fit(lengths, kv_heads, partition, PAGE, known=True).tiles():
        chunk = tile.chunk * tile.pages * kv_heads * budget.chunk_page
        assert chunk <= budget.chunk or tile.chunk == 1
        segment = tile.items * budget.item(tile.pages, kv_heads) + tile.rows * kv_heads * budget.row
        assert segment <= budget.segment or tile.items == 1


@given(budgets(), batches(), heads, partitions, st.booleans())
def test_a_tile_without_a_mask_holds_tokens_in_every_slot(budget, lengths, kv_heads, partition, known):
    lengths = [max(1, length) for length in lengths]
    tiling = budget.fit(lengths, kv_heads, partition, PAGE, known=known)
    ordered = in_order(tiling, lengths)
    for row_tile in tiling.row_tiles:
        for tile in row_tile.tiles:
            end = (tile.parts.stop - 1) * partition + tile.pages * PAGE
            past = max(0, end - min(ordered[row_tile.rows.start : row_tile.rows.start + tile.rows]))
            if known and tile.rows == 1 and past < tile.pages * PAGE:  # the host knows which slots hold no token
                assert (tile.tail, tile.masked, tile.padded) == (past, False, past >= PAGE)
                assert sum(tile.tails()) == list(tile.tails())[-1] == past
            else:
                assert (tile.tail, tile.masked) == (0, not known or past > 0)
                assert tile.padded == (end > -(-max(lengths) // PAGE) * PAGE)


@given(budgets(), batches(), heads)
def test_counts_are_those_of_the_loops(budget, lengths, kv_heads):
    tiling = budget.fit(lengths, kv_heads, 64, PAGE, known=True)
    counts = dict.fromkeys(tiling.counts()._fields, 0)
    for row_tile in tiling.row_tiles:
        counts["row_tiles"] += 1
        counts["merged_row_tiles"] += len(row_tile.tiles) > 1
        for tile in row_tile.tiles:
            chunks = len(list(tile.chunks(torch.empty(tile.items))))
            counts["tiles"] += 1
            counts["wide_tiles"] += tile.parts.stop - tile.parts.start > 1
            counts["masked_tiles"] += tile.masked
            counts["padded_tiles"] += tile.padded
            counts["chunks"] += chunks
            counts["masked_chunks"] += chunks * tile.masked
    assert tiling.counts()._asdict() == counts


@given(batches(), heads, partitions)
def test_the_work_is_proportional_to_the_sum_of_the_lengths(lengths, kv_heads, partition):
    # Without padding that is cheaper than a cut, a sequence costs its own pages, rounded up to whole partitions, and
    # its first partition costs no more than its pages.
    budget = Budget(1 << 23, 1 << 23, 0, 100, 100, 100, 100, 100)
    tiling = budget.fit(lengths, kv_heads, partition, PAGE, known=True)
    whole = partition // PAGE
    pages = [len(found) for row_tile in tiling.row_tiles for found in covered_pages(row_tile, whole)]
    for length, found in zip(in_order(tiling, lengths), pages):
        extent = max(1, -(-length // PAGE))
        assert found < extent + whole and (found == extent or extent > whole)


def test_one_long_sequence_among_short_ones_costs_little_more_than_alone():
    budget = Budget(
        8 << 20, 8 << 20, 1 << 20, 32 << 10, 768, 18528, 352, 37056
    )  # 24 heads, 4 KV heads of 256, bfloat16
    tiling = budget.fit([16] * 7 + [32_768] + [16] * 8, 4, 512, PAGE, known=True)
    assert tiling.ordered
    assert sum(tile.items * tile.pages for tile in tiling.tiles()) <= 32_768 // PAGE + 15 + budget.spare_pages(4)


def test_lengths_that_differ_little_keep_their_order():
    budget = Budget(8 << 20, 8 << 20, 1 << 20, 32 << 10, 768, 18528, 352, 37056)
    assert not budget.fit([1000, 1010, 990, 1001], 4, 512, PAGE, known=True).ordered


def test_all_sequences_are_worked_on_at_once_while_they_fit():
    budget = Budget(chunk=100, segment=1000, padding=0, chunk_page=10, segment_page=0, segment_item=10, page=0, row=5)
    few, many = (budget.fit([length] * 8, 1, PAGE, PAGE, known=False) for length in (160, 1600))
    assert few.row_tiles == (RowTile(slice(0, 8), (Tile(8, slice(0, 10), 1, 10, True, False),)),)
    assert {tile.rows for tile in many.tiles()} == {8} and max(tile.num_parts for tile in many.tiles()) <= 12
    rows = [row_tile.rows for row_tile in budget.fit([16] * 1000, 1, PAGE, PAGE, known=False).row_tiles]
    assert max(row.stop - row.start for row in rows) <= 66


@pytest.mark.parametrize("seqs, tiles", [(25, [25]), (32, [16, 16]), (51, [17, 17, 17])])
def test_row_tiles_are_of_even_size(seqs, tiles):
    budget = Budget(chunk=1, segment=25, padding=0, chunk_page=1, segment_page=0, segment_item=1, page=0, row=0)
    found = budget.fit([16] * seqs, 1, PAGE, PAGE, known=True).row_tiles
    assert [row_tile.rows.stop - row_tile.rows.start for row_tile in found] == tiles


def test_tiles_are_of_even_size():
    budget = Budget(chunk=10, segment=100, padding=0, chunk_page=1, segment_page=1, segment_item=0, page=0, row=0)
    (row_tile,) = budget.fit([101 * PAGE], 1, PAGE, PAGE, known=True).row_tiles
    assert [tile.num_parts for tile in row_tile.tiles] == [51, 50]


@pytest.mark.parametrize("items, chunk", [(3, 3), (4, 2), (5, 3), (7, 3)])
def test_chunks_are_of_even_size(items, chunk):
    budget = Budget(chunk=3, segment=100, padding=0, chunk_page=1, segment_page=1, segment_item=0, page=0, row=0)
    (tile,) = budget.fit([items * PAGE], 1, PAGE, PAGE, known=True).tiles()
    assert tile.chunk == chunk


def test_the_last_partition_is_trimmed():
    budget = Budget(8 << 20, 8 << 20, 1 << 20, 32 << 10, 768, 18528, 352, 37056)
    (alone,) = budget.fit([20], 4, 512, PAGE, known=True).tiles()
    assert (alone.pages, alone.parts, alone.masked, alone.tail) == (2, slice(0, 1), False, 12)
    full, last = budget.fit([1024 + 20], 4, 512, PAGE, known=False).tiles()
    assert (full.pages, full.parts, last.pages, last.parts) == (32, slice(0, 2), 2, slice(2, 3))
    (both,) = budget.fit([1024 - 20], 4, 512, PAGE, known=False).tiles()  # a page less: a cut would cost more
    assert (both.pages, both.parts, both.padded) == (32, slice(0, 2), True)


@pytest.mark.parametrize("num_seqs", [1, 7, 256])
@pytest.mark.parametrize("max_seq_len", [1, 512, 100_000])
def test_a_budget_of_nothing_still_makes_progress(num_seqs, max_seq_len):
    budget = Budget(1, 1, 0, 1000, 1000, 1000, 1000, 1000)
    tiles = list(budget.fit([max_seq_len] * num_seqs, 4, 512, PAGE, known=True).tiles())
    assert {(tile.rows, tile.num_parts, tile.chunk) for tile in tiles} == {(1, 1, 1)}
    assert len(tiles) == num_seqs * -(-max_seq_len // 512)
