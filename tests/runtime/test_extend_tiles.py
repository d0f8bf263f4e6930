"""The cut of query rows: every row is in one query tile, padding is small, the device finds the same query tiles."""

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.runtime.extend.call import ExtendCall
from pav2gen.runtime.extend.oracle import owned_ranges, row_ranges
from pav2gen.runtime.extend.rows import QueryRows, groups_of
from pav2gen.runtime.extend.tiles import ExtendBudget, Shape

#: The CPU's budget of 24 query and 4 KV heads of 256 in float16.
BUDGET = ExtendBudget(
    width=64,
    chunk=8 << 20,
    segment=32 << 20,
    wide=16 << 20,
    padding=1 << 20,
    row_padding=305,
    chunk_page=32 << 10,
    page=256,
    row_page=16,
    segment_page=384,
    segment_item=12336,
    row=24928,
)
PLAIN = Shape(kv_heads=4, keys=512, page=16)


@st.composite
def budgets(draw):
    figures = {
        "segment": draw(st.sampled_from([1 << 18, 1 << 20, 32 << 20])),
        "wide": draw(st.sampled_from([1 << 18, 16 << 20])),
        "chunk": draw(st.sampled_from([1, 8 << 20])),
    }
    return BUDGET._replace(width=draw(st.sampled_from([1, 3, 64])), row_padding=draw(st.integers(1, 400)), **figures)


@st.composite
def batches(draw):
    """Query lengths and contexts of a batch."""
    rows = st.one_of(st.integers(0, 3), st.integers(0, 3), st.integers(0, 70))
    lengths = draw(st.lists(st.tuples(rows, st.integers(0, 1000)), min_size=1, max_size=6))
    return [new for new, _ in lengths], [old for _, old in lengths]


shapes = st.builds(Shape, st.integers(1, 8), st.just(64), st.just(16), st.sampled_from([None, 1, 50, 1000]))


def call_of(starts, seq_lens, tokens, max_query_len, known=True):
    """A call with these offsets, lengths and rows. Each value of ``out`` is -1; its heads and caches do not matter."""
    nothing = torch.empty(0)
    return ExtendCall(
        out=torch.full((tokens, 1, 1), -1.0),
        query=torch.empty(tokens, 1, 1),
        key_cache=nothing,
        value_cache=nothing,
        scale=1.0,
        block_tables=nothing,
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        max_query_len=max_query_len,
        max_seq_len=max(1, *seq_lens),
        alibi_slopes=None,
        k_scale=1.0,
        v_scale=1.0,
        read_lengths=known,
    )


def call_of_batch(new, old, known=True, spare=2):
    """A call of a batch, with ``spare`` rows that no sequence owns at its end."""
    starts = [0, *accumulate(new)]
    seq_lens = [a + b for a, b in zip(new, old, strict=True)]
    return call_of(starts, seq_lens, max(1, starts[-1] + spare), max(1, *new), known)


def numbered(call, budget, shape):
    """``out`` after each query tile has written position * tokens + row of each of its rows, as a kernel writes."""
    tokens = call.query.shape[0]
    for group in groups_of(call, budget, shape):
        rows = QueryRows(call, group, shape)
        for row_tile in group.tiling.row_tiles:
            held = rows.take(row_tile.rows)
            each = torch.arange(held.rows.numel()).view(held.rows.shape) + 0.5  # what surplus rows would write
            offsets = torch.arange(group.width) < rows.counts[row_tile.rows].unsqueeze(1)
            each[offsets] = (held.queries * tokens + _own_rows(rows, row_tile.rows)).float()[offsets]
            held.put(call.out, each.flatten().view(-1, 1, 1))
    return call.out.flatten()


def _own_rows(rows, taken):
    return rows.firsts[taken].unsqueeze(1) + torch.arange(rows.group.width)


def expected(call):
    """What ``numbered`` must give: the number of each row that the call computes, and -1 elsewhere."""
    tokens = call.query.shape[0]
    out = torch.full((tokens,), -1.0)
    for s, (owned, computed) in enumerate(zip(owned_ranges(call), row_ranges(call))):
        length = min(max(int(call.seq_lens[s]), 0), call.max_seq_len)
        for i, row in enumerate(computed):
            out[row] = (length - len(owned) + i) * tokens + row
    return out


@given(budgets(), batches(), shapes, st.booleans())
def test_each_row_is_written_by_its_own_tile_and_no_other_row_is(budget, batch, shape, known):
    call = call_of_batch(*batch, known=known)
    assert torch.equal(numbered(call, budget, shape), expected(call))


@given(
    st.lists(st.integers(-4, 25), min_size=2, max_size=6).map(sorted),
    st.integers(1, 20),
    st.sampled_from([1, 3, 64]),
    st.booleans(),
)
def test_offsets_beyond_the_rows_and_too_long_sequences_are_cut(starts, max_query_len, width, known):
    call = call_of(starts, [30] * (len(starts) - 1), 20, max_query_len, known)
    assert torch.equal(numbered(call, BUDGET._replace(width=width), PLAIN), expected(call))


@given(st.lists(st.integers(-9, 30), min_size=2, max_size=6), st.integers(-5, 40), st.booleans())
def test_offsets_without_order_leave_rows_of_nobody_alone(starts, length, known):
    call = call_of(starts, [length] * (len(starts) - 1), 20, 7, known)
    out = numbered(call, BUDGET._replace(width=3), PLAIN)
    owned = {row for rows in row_ranges(call) for row in rows}
    assert all(float(out[row]) == -1 for row in range(20) if row not in owned)


@given(budgets(), batches(), shapes)
def test_bounds_hold_for_every_batch(budget, batch, shape):
    call = call_of_batch(*batch, known=False)
    (group,) = groups_of(call, budget, shape)
    rows = QueryRows(call, group, shape)
    assert int(rows.total) == int((rows.counts > 0).sum()) <= group.number
    assert group.number <= -(-call.query.shape[0] // group.width) + call.seq_lens.shape[0]
    begins = (rows.positions + 1 - (shape.window or 1 << 40)).clamp_min(0) // shape.keys * shape.keys
    reached = rows.positions + rows.counts - begins
    assert all(int(reached.max()) <= _tokens(row_tile, shape) for row_tile in group.tiling.row_tiles)


def _tokens(row_tile, shape):
    """The tokens that the tiles of a row tile reach in each of its query tiles."""
    last = row_tile.tiles[-1]
    return (last.parts.stop - 1) * shape.keys + last.pages * shape.page


@given(budgets(), batches(), shapes)
def test_every_token_of_a_query_tile_is_read(budget, batch, shape):
    call = call_of_batch(*batch)
    for group in groups_of(call, budget, shape):
        assert group.full == all(tile.rows == group.width for tile in group.tiles)
        for row_tile in group.tiling.row_tiles:
            for number, tile in enumerate(group.tiles[row_tile.rows]):
                tokens = [range(t.parts.start * shape.keys, (t.parts.stop - 1) * shape.keys + t.pages * shape.page)
                          for t in row_tile.tiles if number < t.rows]  # fmt: skip
                assert all(a.stop == b.start for a, b in pairwise(tokens))
                assert tokens[0].start == 0 and tokens[-1].stop >= tile.tokens(shape)


@given(budgets(), batches(), shapes)
def test_keys_without_a_mask_are_attended_by_all_rows(budget, batch, shape):
    call = call_of_batch(*batch)
    for group in groups_of(call, budget, shape):
        for row_tile in group.tiling.row_tiles:
            for t in row_tile.tiles:
                end = (t.parts.stop - 1) * shape.keys + t.pages * shape.page
                first = min(tile.position for tile in group.tiles[row_tile.rows][: t.rows])
                assert t.masked or (shape.window is None and end <= first + 1)


def test_decodes_beside_a_prompt_are_not_padded():
    groups = BUDGET.fit([*range(61), 60 + 512], [1000] * 60 + [1512], PLAIN, 512)
    assert [(group.width, group.number) for group in groups] == [(64, 8), (1, 60)]


def test_a_prompt_costs_half_of_its_square():
    (group,) = BUDGET.fit([0, 4096], [4096], PLAIN, 4096)
    work = sum(group.width * tile.items * tile.pages * 16 for tile in group.tiling.tiles())
    assert work <= 4096 * 4097 / 2 * 1.1


def test_a_window_costs_no_more_than_its_length_and_the_tile():
    shape = PLAIN._replace(keys=64, window=128)
    (group,) = BUDGET.fit([0, 640], [100_000], shape, 640)
    assert max(tile.num_parts * tile.pages * 16 for tile in group.tiling.tiles()) <= 128 + 64 + 64
    bound = BUDGET.bound(640, 1, 100_000, shape, 640)
    assert max(tile.parts.stop for tile in bound.tiling.tiles()) <= -(-(128 + 64) // 64) + 1


def test_drafts_of_similar_lengths_share_a_group():
    starts = [0, *accumulate([3, 5, 4, 5] * 4)]
    (group,) = BUDGET.fit(starts, [30] * 16, PLAIN, 5)
    assert (group.width, group.number, group.full) == (5, 16, False)


@pytest.mark.parametrize("heads, width", [(1, 64), (4, 64), (32, 10)])
def test_tiles_are_as_wide_as_the_workspace_allows(heads, width):
    assert BUDGET.widest(PLAIN._replace(kv_heads=heads), 2048) == width
    assert BUDGET.widest(PLAIN._replace(kv_heads=heads), 4) == 4


def test_a_workspace_of_nothing_still_makes_progress():
    budget = BUDGET._replace(chunk=1, segment=1)
    (group,) = budget.fit([0, 5], [2000], PLAIN, 5)
    assert group.width == 1
    assert {(tile.rows, tile.num_parts, tile.chunk) for tile in group.tiling.tiles()} == {(1, 1, 1)}
