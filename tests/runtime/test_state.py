"""Parts of a softmax merge to the whole, whatever the cut, the order and the emptiness of parts."""

import math
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.runtime.attention.rows import Rows
from pav2gen.runtime.attention.state import LOWEST, SMALLEST, State, exponentials, merge, reduce_partitions
from pav2gen.runtime.attention.state import write_output as write


def call_of(out, sinks=None, lse=None):
    """What ``write_output`` reads of a call."""
    return SimpleNamespace(out=out, sinks=sinks, lse=lse)


def write_output(out, state, sinks=None, lse=None):
    """Write one row, as it comes."""
    rows = Rows(torch.ones(1, dtype=torch.int32), ordered=False)
    write(call_of(out, sinks, lse), rows, slice(0, 1), state)


def state_of(scores, values):
    """The state of some tokens, computed in float64: scores [tokens], values [tokens, 3]."""
    m = scores.max() if len(scores) else torch.tensor(-math.inf)
    weights = torch.exp(scores.double() - (m if m > -math.inf else 0))
    o = weights @ values.double()
    return State(*(t.float().view(1, 1, *t.shape[0:]) for t in (m, weights.sum(), o)))


cuts = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@given(cuts, st.integers(0, 2**31), st.floats(0.1, 300))
def test_merged_parts_are_the_whole(lengths, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    scores = torch.randn(tokens, generator=generator) * spread
    values = torch.randn(tokens, 3, generator=generator)
    state = None
    start = 0
    for length in lengths:
        state = merge(state, state_of(scores[start : start + length], values[start : start + length]))
        start += length
    out = torch.full((1, 1, 3), math.nan)
    write_output(out, state)
    expected = torch.softmax(scores.double(), 0) @ values.double() if tokens else torch.zeros(3, dtype=torch.float64)
    assert (out[0, 0].double() - expected).norm() <= 1e-5 * max(1.0, float(values.norm()))


@given(cuts, st.integers(0, 2**31))
def test_reduced_partitions_are_the_merged_ones(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    parts = [
        state_of(torch.randn(n, generator=generator) * 30, torch.randn(n, 3, generator=generator)) for n in lengths
    ]
    merged = None
    for part in parts:
        merged = merge(merged, State(*(tensor.clone() for tensor in part)))
    reduced = reduce_partitions(*(torch.stack([part[i] for part in parts], 1) for i in range(3)))
    for one, other in zip(reduced, merged):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_part_of_fewer_rows_leaves_the_others_as_they_are():
    generator = torch.Generator().manual_seed(0)
    one, two, more = (
        state_of(torch.randn(9, generator=generator), torch.randn(9, 3, generator=generator)) for _ in "123"
    )
    both = merge(None, State(*(torch.cat(pair) for pair in zip(one, two))))
    merged = merge(both, more)
    alone = merge(merge(None, one), more)
    for found, first, second in zip(merged, alone, two):
        assert torch.equal(found, torch.cat([first, second]))


def test_the_first_part_is_kept_when_the_workspace_is_used_again():
    part = state_of(torch.randn(4), torch.randn(4, 3))
    kept = merge(None, part)
    before = kept.o.clone()
    part.o.fill_(math.nan)
    assert torch.equal(kept.o, before)


def test_the_output_goes_to_the_sequences_in_the_order_of_the_call():
    lengths = torch.tensor([3, 9, 5, 9], dtype=torch.int32)
    rows = Rows(lengths, ordered=True)
    assert rows.seq_lens.tolist() == [9, 9, 5, 3]
    out = torch.full((4, 1, 1), math.nan, dtype=torch.float16)
    o = torch.tensor([10.0, 20.0, 30.0, 40.0]).view(4, 1, 1)
    for taken in (slice(0, 3), slice(3, 4)):
        write(call_of(out), rows, taken, State(torch.zeros(4, 1)[taken], torch.full((4, 1), 2.0)[taken], o[taken]))
    assert out.flatten().tolist() == [20.0, 5.0, 15.0, 10.0]
    assert rows.take(lengths, slice(1, 3)).tolist() == [9, 5]


def test_nothing_merged_with_nothing_is_nothing():
    nothing = state_of(torch.empty(0), torch.empty(0, 3))
    merged = merge(State(*(t.clone() for t in nothing)), nothing)
    assert float(merged.m) == -math.inf and float(merged.z) == 0
    out = torch.full((1, 1, 3), math.nan)
    write_output(out, merged)
    assert torch.equal(out, torch.zeros(1, 1, 3))


def test_a_nan_is_not_hidden():
    broken = State(torch.zeros(1, 1), torch.ones(1, 1), torch.full((1, 1, 3), math.nan))
    out = torch.zeros(1, 1, 3)
    write_output(out, merge(broken, state_of(torch.randn(4), torch.randn(4, 3))))
    assert out.isnan().all()


def test_the_constants_are_float32_s():
    assert torch.finfo(torch.float32).min == LOWEST
    assert torch.finfo(torch.float32).tiny == SMALLEST


def test_a_sink_takes_part_in_the_sum_once_and_lse_is_natural():
    generator = torch.Generator().manual_seed(5)
    scores, values = torch.randn(7, generator=generator) * 20, torch.randn(7, 3, generator=generator)
    for sink in (-math.inf, -50.0, 0.0, 30.0, 1e4):
        logits = torch.cat([scores.double(), torch.tensor([sink], dtype=torch.float64)])
        state = merge(state_of(scores[:3], values[:3]), state_of(scores[3:], values[3:]))
        out, lse = torch.full((1, 1, 3), math.nan), torch.full((1, 1), math.nan)
        write_output(out, state, torch.tensor([sink]), lse)
        expected = torch.softmax(logits, 0)[:-1] @ values.double()
        torch.testing.assert_close(out[0, 0].double(), expected, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(float(lse), float(torch.logsumexp(logits, 0)), rtol=1e-6, atol=1e-6)


def test_the_lse_of_nothing_is_the_sink_or_minus_infinity():
    for sinks, wanted in ((None, -math.inf), (torch.tensor([1.5]), 1.5), (torch.tensor([-math.inf]), -math.inf)):
        out, lse = torch.full((1, 1, 3), math.nan), torch.full((1, 1), math.nan)
        write_output(out, merge(None, state_of(torch.empty(0), torch.empty(0, 3))), sinks, lse)
        assert out.flatten().tolist() == [0.0, 0.0, 0.0] and float(lse) == wanted


def test_exponentials_replace_scores_in_place():
    scores = torch.tensor([[1e4, 1e4 - 1, -1e4], [-math.inf, 0.5, -3.0]])
    expected = torch.exp(scores.double() - scores.double().amax(-1, keepdim=True))
    found = exponentials(scores, scores.amax(-1), hidden=False)
    assert found is scores
    assert torch.allclose(scores.double(), expected, rtol=2e-3, atol=0)  # 1e4 in float32 is known to 1e-3
    assert torch.allclose(scores[1].double(), expected[1], rtol=1e-6, atol=0)


def test_exponentials_of_hidden_scores_are_zero():
    scores = torch.tensor([[-math.inf, -math.inf], [2.0, -math.inf]])
    assert exponentials(scores, scores.amax(-1), hidden=True).tolist() == [[0.0, 0.0], [1.0, 0.0]]
