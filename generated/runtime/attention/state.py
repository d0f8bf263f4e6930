"""Computes and merges softmax states, the partial results of attention over a set of tokens (as in flash-decoding).

Tokens with scores s and V vectors v have the state m = max s, z = sum exp(s - m) and o = sum exp(s - m) v. The
attention output is o / z. An empty set of tokens has the state m = -inf, z = 0 and o = 0.
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
    """The softmax state (m, z, o) of each sequence and query head, from which o / z gives the attention output.

    In the shapes, rows is the number of sequences, and heads is the number of query heads.

    m: the maximum score, [rows, heads] float32.
    z: the sum of e^(score - m) over the tokens, [rows, heads] float32.
    o: the sum of e^(score - m) times the V vector of each token, [rows, heads, head size] float32.
    """

    m: torch.Tensor
    z: torch.Tensor
    o: torch.Tensor


def exponentials(scores: torch.Tensor, m: torch.Tensor, hidden: bool) -> torch.Tensor:
    """Replace each score by e^(score - m) in place, and return ``scores``.

    If an element of ``m`` may be -inf, ``hidden`` must be True. The scores for this element are then replaced by 0
    instead of NaN.

    scores: [..., tokens].
    m: the maximum of the scores over the tokens, [...].
    """
    shift = torch.mul(m, -LOG2_E)
    if hidden:
        shift.clamp_max_(-LOWEST)
    return torch.add(shift.unsqueeze(-1), scores, alpha=LOG2_E, out=scores).exp2_()


def normalize(scores: torch.Tensor, weights: torch.Tensor, totals: torch.Tensor | None) -> torch.Tensor:
    """Write softmax(scores) over the last dimension to ``weights``, and return z, the sum of e^(score - maximum score).

    Each vector of scores must have an element that is not -inf.

    scores, weights: float32 tensors of the same shape, [..., tokens].
    totals: a float32 tensor [...] that receives z, or None.
    """
    torch.softmax(scores, -1, out=weights)
    return torch.amax(weights, -1, out=totals).reciprocal_()


def reduce_partitions(m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> State:
    """Merge the softmax states (m, z, o) of all given partitions into one state for each sequence and query head.

    If there is only one partition, the results are views of the arguments. If there are several partitions, the
    function overwrites o.

    In the shapes, rows is the number of sequences, and heads is the number of query heads.

    m: the maximum score of each partition, [rows, partitions, heads] float32.
    z: the sum of e^(score - m) over the tokens of each partition, [rows, partitions, heads] float32.
    o: the sum of e^(score - m) times the V vector of each token, [rows, partitions, heads, head size] float32.
    """
    if m.shape[1] == 1:
        return State(m[:, 0], z[:, 0], o[:, 0])
    top = m.amax(1)  # [rows, heads]
    weights = torch.sub(m, top.clamp_min(LOWEST).unsqueeze(1)).exp_()  # [rows, parts, heads]
    return State(top, torch.mul(z, weights).sum(1), o.mul_(weights.unsqueeze(-1)).sum(1))


def merge(a: State | None, b: State) -> State:
    """Merge the softmax state ``b`` into the softmax state ``a`` in place, and return ``a``.

    If ``a`` is None, the function returns a copy of ``b``. If ``b`` has fewer sequences than ``a``, the function merges
    ``b`` into the first sequences of ``a``.
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
    """Write the attention outputs o / z of some sequences to ``call.out``.

    A sequence that attends to no token gets an output of zeros. If the call has an lse tensor, the function also writes
    the log-sum-exp of each sequence. If the call has attention sinks, the function adds each head's sink to the softmax
    denominator z. The function overwrites the tensors of ``state``.

    taken: the sequences of ``state``, as a slice of ``rows``.
    """
    z, lse = with_sink(state, call.sinks, call.lse is not None)
    if call.lse is not None and lse is not None:
        rows.put(call.lse, taken, lse)
    rows.put_quotient(call.out, taken, state.o, z.clamp_min(SMALLEST))


def with_sink(state: State, sinks: torch.Tensor | None, lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Add each head's attention sink to the softmax denominator z of ``state``.

    An attention sink is an extra logit of a head that takes part in the softmax but belongs to no token. The first
    result is the tensor by which the caller must divide ``state.o``. The second result is the log-sum-exp, or None if
    ``lse`` is False. If there are sinks, the function rescales ``state.o`` in place.

    sinks: float32 logits that broadcast to the shape of ``state.m``, or None.
    lse: whether to compute the log-sum-exp, the natural logarithm of the sum of e^score over all tokens and the sink.
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
    """Replace the scores of new tokens by softmax weights e^(score - maximum) in place, and return the weights.

    The maximum includes the scores of earlier tokens, which ``state.m`` holds. The function updates ``state.m`` and
    ``state.z`` to include the new tokens. The function only rescales ``state.o`` to the new maximum. The caller must
    then add the weighted V vectors of the new tokens to ``state.o``.

    In this function, ``state.m`` is the maximum score times log2(e).

    state: m and z are [rows, ...], and o is [rows, ..., head size], where ... are dimensions such as the heads.
    scores: the scores of the new tokens, [rows, partitions, ..., tokens per partition] float32.
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
