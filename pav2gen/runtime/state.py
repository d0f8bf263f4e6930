"""The softmax state of a part of a sequence, and the merge of two states (as in flash-decoding).

For a set of tokens with scores s and values v, a state holds m = max s, z = sum exp(s - m) and o = sum exp(s - m) v.
A set without tokens has m = -inf, z = 0 and o = 0. A merge with it changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .call import Call
from .rows import Rows

#: Replaces a maximum of -inf in a difference: exp(-inf - LOWEST) is 0, but exp(-inf - -inf) is NaN.
LOWEST = -3.4028234663852886e38

#: e^x is 2^(x * LOG2_E), and torch computes 2^x several times as fast as e^x on a CPU.
LOG2_E = 1.4426950408889634

#: Replaces z = 0 in the division of o = 0 by z: the smallest normal float32. A NaN stays a NaN.
SMALLEST = 1.1754943508222875e-38


class State(NamedTuple):
    """m and z: [rows, heads] float32; o: [rows, heads, head size] float32, not divided by z."""

    m: torch.Tensor
    z: torch.Tensor
    o: torch.Tensor


def reduce_partitions(m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> State:
    """Merge the states of all partitions of a segment. ``o`` is overwritten.

    m and z: [rows, parts, heads]; o: [rows, parts, heads, head size], not divided by z. If there is only one partition,
    the result consists of views.
    """
    if m.shape[1] == 1:
        return State(m[:, 0], z[:, 0], o[:, 0])
    top = m.amax(1)  # [rows, heads]
    weights = torch.sub(m, top.clamp_min(LOWEST).unsqueeze(1)).exp_()  # [rows, parts, heads]
    return State(top, torch.mul(z, weights).sum(1), o.mul_(weights.unsqueeze(-1)).sum(1))


def merge(a: State | None, b: State) -> State:
    """Merge state ``b`` into state ``a``, in place, and return it. ``a`` is None before the first part.

    ``b`` may have fewer rows than ``a``: the other rows have no more tokens. ``b`` is overwritten.
    """
    if a is None:
        # b.o may lie in the workspace, which the next segment overwrites; b.m and b.z in the caller's scratch
        return State(b.m.clone(), b.z.clone(), b.o.clone())
    rows = slice(0, b.m.shape[0])
    first = State(a.m[rows], a.z[rows], a.o[rows])
    m = torch.maximum(first.m, b.m)
    floor = m.clamp_min(LOWEST)
    wa, wb = torch.sub(first.m, floor).exp_(), torch.sub(b.m, floor).exp_()
    first.z.mul_(wa).addcmul_(b.z, wb)
    first.o.mul_(wa.unsqueeze(-1)).addcmul_(b.o, wb.unsqueeze(-1))
    first.m.copy_(m)
    return a


def write_output(call: Call, rows: Rows, taken: slice, state: State) -> None:
    """Write out[taken] = o / z, or zeros for a row that attends to no token. Also write lse if the call asks for it.

    A sink is added to the divisor here and nowhere else. ``state`` is overwritten.
    """
    z, lse = with_sink(state, call.sinks, call.lse is not None)
    if call.lse is not None and lse is not None:
        rows.put(call.lse, taken, lse)
    rows.put_quotient(call.out, taken, state.o, z.clamp_min(SMALLEST))


def with_sink(state: State, sinks: torch.Tensor | None, lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The divisor of o, and the natural logarithm of the whole denominator if ``lse`` asks for it.

    A sink is part of both. sinks: a tensor that broadcasts to m, or None. May change o in place.
    """
    if sinks is None and not lse:
        return state.z, None
    base = state.m if sinks is None else torch.maximum(state.m, sinks)
    base = base.clamp_min(LOWEST)  # finite where no token is attended
    rescale = torch.sub(state.m, base).exp_()
    z = torch.mul(state.z, rescale)
    if sinks is not None:
        z.add_(torch.sub(sinks, base).exp_())
        state.o.mul_(rescale.unsqueeze(-1))
    return z, torch.log(z).add_(base) if lse else None


def weigh(state: State, scores: torch.Tensor) -> torch.Tensor:
    """Turn ``scores`` into weights e^(score - maximum) in place, for the maximum of all tokens so far.

    state: m and z [rows, ...]; o [rows, ..., head size]. m is the maximum times LOG2_E. It is changed in place: m and z
    then count the tokens of the scores too, and o is rescaled to that m. scores: [rows, parts, ..., tokens of a part].
    """
    m = scores.amax(-1).amax(1).mul_(LOG2_E)
    torch.maximum(m, state.m, out=m)
    floor = m.clamp_min(LOWEST)
    rescale = torch.sub(state.m, floor).exp2_()
    state.m.copy_(m)
    state.o.mul_(rescale.unsqueeze(-1))
    torch.add(floor.neg_().unsqueeze(1).unsqueeze(-1), scores, alpha=LOG2_E, out=scores)
    weights = scores.exp2_()
    state.z.mul_(rescale).add_(weights.sum(-1).sum(1))
    return weights
