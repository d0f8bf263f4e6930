"""How a PyTorch kernel fills the caller's scratch, and the output of sequences that have one partition."""

from __future__ import annotations

import torch

from .call import Call, Segment
from .rows import Rows


def scratch_targets(call: Call, rows: Rows, part: Segment) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Views of max_logits and exp_sums for a segment's partitions: [rows, parts, heads] each.

    A kernel reduces its scores into them and copies nothing. None if there is no scratch, or if the rows are ordered:
    then they do not lie together.
    """
    if call.scratch is None or rows.ordered:
        return None, None
    place = part.rows, slice(None), part.tile.parts
    return call.scratch.max_logits[place].transpose(1, 2), call.scratch.exp_sums[place].transpose(1, 2)


def write_scratch(call: Call, rows: Rows, part: Segment, m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> None:
    """Store a segment's results in the scratch, if there is one: max_logits = m, exp_sums = z and tmp_out = o / z.

    m and z: [rows, parts, heads], or the views of ``scratch_targets``. o: [rows, parts, heads, head size], not divided
    by z.
    """
    if call.scratch is None:
        return
    exp_sums, max_logits, tmp_out = (tensor[:, :, part.tile.parts] for tensor in call.scratch)
    if rows.ordered:
        rows.put(max_logits, part.rows, m.transpose(1, 2))
        rows.put(exp_sums, part.rows, z.transpose(1, 2))
    rows.put_quotient(tmp_out, part.rows, o.transpose(1, 2), z.transpose(1, 2))


def write_lone_output(call: Call, part: Segment, m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> None:
    """Store out = o / z of sequences that have a single partition, tmp_out = out, and lse = log(z) + m.

    The latter two only if the call has them. m, z: [rows, 1, heads]; z is not 0. o: [rows, 1, heads, head size]; it is
    changed.
    """
    own = o.div_(z.unsqueeze(-1))[:, 0]
    call.out[part.rows].copy_(own)
    if call.scratch is not None:
        call.scratch.tmp_out[part.rows, :, part.tile.parts.start].copy_(own)
    if call.lse is not None:
        call.lse[part.rows].copy_(torch.log(z).add_(m)[:, 0])


def clear_slots(pages: torch.Tensor, tail: int) -> None:
    """Zero the last ``tail`` slots of consecutive ``pages`` of a sequence, [pages, kv_heads, head size, slots].

    They may hold NaN, and 0 * NaN is NaN.
    """
    blank, partial = divmod(tail, pages.shape[3])
    if blank:
        pages[-blank:].zero_()
    if partial:
        pages[-blank - 1, :, :, -partial:].zero_()
