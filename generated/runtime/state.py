"""The softmax state of a part of a sequence, and how two parts merge (flash-decoding; log-sum-exp rescaling).

For a set of tokens with scores s and values v, a state holds m = max s, z = sum exp(s - m) and o = sum exp(s - m) v.
A set without tokens has m = -inf, z = 0 and o = 0, and is neutral in a merge.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

#: Stands in for a maximum of -inf where a difference is taken: exp(-inf - LOWEST) is 0, exp(-inf - -inf) is NaN.
LOWEST = -3.4028234663852886e38


class State(NamedTuple):
    """m and z: [rows, heads] float32; o: [rows, heads, head size] float32, not divided by z."""

    m: torch.Tensor
    z: torch.Tensor
    o: torch.Tensor


def reduce_partitions(m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> State:
    """The state of all partitions of a segment together; ``o`` is used up.

    m and z: [rows, parts, heads]; o: [rows, parts, heads, head size], not divided by z.
    """
    top = m.amax(1)  # [rows, heads]
    weights = torch.sub(m, top.clamp_min(LOWEST).unsqueeze(1)).exp_()  # [rows, parts, heads]
    return State(top, torch.mul(z, weights).sum(1), o.mul_(weights.unsqueeze(-1)).sum(1))


def merge(a: State | None, b: State) -> State:
    """The state of the tokens of both; ``a`` is None before the first part. Uses up both."""
    if a is None:
        return b
    m = torch.maximum(a.m, b.m)
    floor = m.clamp_min(LOWEST)
    wa, wb = torch.sub(a.m, floor).exp_(), torch.sub(b.m, floor).exp_()
    z = a.z.mul_(wa).addcmul_(b.z, wb)
    o = a.o.mul_(wa.unsqueeze(-1)).addcmul_(b.o, wb.unsqueeze(-1))
    return State(m, z, o)


def write_output(out: torch.Tensor, state: State) -> None:
    """out = o / z, [rows, heads, head size] like ``out``; zeros where no token was attended. Uses up ``state``."""
    out.copy_(state.o.div_(state.z.unsqueeze(-1)).masked_fill_((state.z == 0).unsqueeze(-1), 0.0))
