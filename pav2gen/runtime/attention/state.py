"""The softmax state of a set of tokens, and the merge of two states (as in flash-decoding).

For tokens with scores s and values v, the state is m = max s, z = sum exp(s - m) and o = sum exp(s - m) v. The state of
an empty set is m = -inf, z = 0 and o = 0; merging it into another state changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..call import Call
from .rows import Rows

#: Replaces a maximum of -inf before it is subtracted from scores: exp(-inf - LOWEST) is 0, while exp(-inf - -inf) is
#: NaN.
LOWEST = -3.4028234663852886e38

#: e^x is 2^(x * LOG2_E), and torch computes 2^x several times as fast as e^x on a CPU.
LOG2_E = 1.4426950408889634

#: The smallest normal float32. It replaces a divisor z = 0, so that o / z is 0 / SMALLEST = 0. A z of NaN stays NaN.
SMALLEST = 1.1754943508222875e-38


class State(NamedTuple):
    """The softmax states of some rows (sequences), one for each row and query head.

    m, z: [rows, heads] float32. o: [rows, heads, head size] float32.
    """

    m: torch.Tensor
    z: torch.Tensor
    o: torch.Tensor


def exponentials(scores: torch.Tensor, m: torch.Tensor, hidden: bool) -> torch.Tensor:
    """Replace each score by e^(score - m), in place, and return the tensor.

    scores: [..., tokens]. m: the maximum of the scores over the tokens, [...].

    hidden: whether an element of ``m`` may be -inf. Its scores are then all -inf, and each of them is replaced by 0.
    """
    shift = torch.mul(m, -LOG2_E)
    if hidden:
        shift.clamp_max_(-LOWEST)
    return torch.add(shift.unsqueeze(-1), scores, alpha=LOG2_E, out=scores).exp2_()


def normalize(scores: torch.Tensor, weights: torch.Tensor, totals: torch.Tensor | None) -> torch.Tensor:
    """Write the softmax of scores over the last dimension to ``weights``, and return z (see above).

    The largest weight is e^0 / z. For short rows this takes fewer calls than ``exponentials``, a sum and a division.

    scores: [..., tokens] float32. At least one score of each row is not -inf. weights: like ``scores``.
    totals: receives z, [...] float32, or None.
    """
    torch.softmax(scores, -1, out=weights)
    return torch.amax(weights, -1, out=totals).reciprocal_()


def reduce_partitions(m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> State:
    """Merge the states of all partitions of a segment into one state for each sequence and head.

    If there is a single partition, the result consists of views of the arguments.

    m, z: [rows, partitions, heads] float32, where a row is a sequence. o: [rows, partitions, heads, head size] float32.
    The elements of o are overwritten.
    """
    if m.shape[1] == 1:
        return State(m[:, 0], z[:, 0], o[:, 0])
    top = m.amax(1)  # [rows, heads]
    weights = torch.sub(m, top.clamp_min(LOWEST).unsqueeze(1)).exp_()  # [rows, parts, heads]
    return State(top, torch.mul(z, weights).sum(1), o.mul_(weights.unsqueeze(-1)).sum(1))


def merge(a: State | None, b: State) -> State:
    """Merge state ``b`` into state ``a`` in place, and return ``a``. If ``a`` is None, return a copy of ``b``.

    ``b`` may have fewer rows than ``a``; the remaining rows of ``a`` keep their state.
    """
    if a is None:
        # copied, because b.o may be a view of the workspace, and b.m and b.z may be views of the caller's scratch
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
    """Write the attention outputs o / z of the rows ``taken`` to ``out``, or zeros for a row that attends to no token.

    If the call has an ``lse`` tensor, the same rows of it are written too. If the call has sinks, each head's sink is
    added to the softmax denominator z here; the state of a partition never includes it. The tensors of ``state`` are
    overwritten.
    """
    z, lse = with_sink(state, call.sinks, call.lse is not None)
    if call.lse is not None and lse is not None:
        rows.put(call.lse, taken, lse)
    rows.put_quotient(call.out, taken, state.o, z.clamp_min(SMALLEST))


def with_sink(state: State, sinks: torch.Tensor | None, lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Add the attention sinks to the softmax denominator. Return the tensor to divide o by, and the log-sum-exp (None
    unless ``lse``).

    Each head may have one sink: an extra logit, which takes part in the softmax, but belongs to no token. With sinks,
    state.o is rescaled in place.

    sinks: float32 logits that broadcast to the shape of m, or None.
    lse: whether to compute the log-sum-exp: the natural logarithm of the sum of e^score over all tokens and the sink.
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
    """Turn the scores of new tokens into softmax weights e^(score - maximum) in place, and return the weights.

    ``state.m`` and ``state.z`` are updated to include the new tokens. ``state.o`` is only rescaled to the new maximum.
    The caller must then add the weighted values of the new tokens to ``state.o``.

    state: m and z are [rows, ...], and o is [rows, ..., head size]. The dots stand for the dimensions of the heads. m
    is the maximum score so far, times LOG2_E.
    scores: [rows, partitions, ..., tokens of a partition] float32, the scores of the new tokens.
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
