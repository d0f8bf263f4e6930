"""Writes the softmax state of partitions to the caller's scratch tensors, and the output of sequences with one
partition.

In the shapes, rows and partitions are those of a segment's tile, and heads are the query heads.
"""

from __future__ import annotations

import torch

from ..call import Call, Segment
from .rows import Rows, part_of


def scratch_targets(call: Call, rows: Rows, part: Segment) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the parts of max_logits and exp_sums that belong to a segment, as views [rows, partitions, heads].

    A kernel can write its maxima and sums directly into these views. Both results are None if the call has no scratch.
    The results are also None if the rows are sorted, because the sequences of a segment are then not adjacent in the
    scratch.
    """
    if call.scratch is None or rows.ordered:
        return None, None
    max_logits, exp_sums = (
        part_of(part_of(tensor, 0, part.rows), 2, part.tile.parts).transpose(1, 2)
        for tensor in (call.scratch.max_logits, call.scratch.exp_sums)
    )
    return max_logits, exp_sums


def write_scratch(call: Call, rows: Rows, part: Segment, m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> None:
    """Write a segment's softmax state (see ``state``) to the scratch: max_logits = m, exp_sums = z, tmp_out = o / z.

    This function does nothing if the call has no scratch. If ``scratch_targets`` returned views for this segment, m and
    z must be these views.

    m, z: [rows, partitions, heads] float32. o: [rows, partitions, heads, head size] float32, not yet divided by z.
    """
    if call.scratch is None:
        return
    exp_sums, max_logits, tmp_out = (part_of(tensor, 2, part.tile.parts) for tensor in call.scratch)
    if rows.ordered:
        rows.put(max_logits, part.rows, m.transpose(1, 2))
        rows.put(exp_sums, part.rows, z.transpose(1, 2))
    rows.put_quotient(tmp_out, part.rows, o.transpose(1, 2), z.transpose(1, 2))


def write_lone_output(call: Call, part: Segment, m: torch.Tensor, z: torch.Tensor, outputs: torch.Tensor) -> None:
    """Write the attention outputs of sequences that have a single partition.

    If the call has a scratch, the outputs are also written to tmp_out. If the call has an lse tensor, log(z) + m is
    written to lse. The module ``state`` defines m and z.

    m, z: [rows, 1, heads] float32, where z is not 0. outputs: [rows, 1, heads, head size] float32.
    """
    own = outputs.squeeze(1)
    part_of(call.out, 0, part.rows).copy_(own)
    if call.scratch is not None:
        part_of(call.scratch.tmp_out, 0, part.rows).select(2, part.tile.parts.start).copy_(own)
    if call.lse is not None:
        part_of(call.lse, 0, part.rows).copy_(torch.log(z).add_(m).squeeze(1))


def clear_slots(pages: torch.Tensor, tail: int) -> None:
    """Set the values (V) in the last ``tail`` token slots of a sequence to 0.

    They must be 0, because unused slots may hold NaN, and even a weight of 0 times NaN is NaN.

    pages: the values in the sequence's consecutive pages, [pages, kv_heads, head size, token slots of a page].
    """
    blank, partial = divmod(tail, pages.shape[3])
    if blank:
        pages[-blank:].zero_()
    if partial:
        pages[-blank - 1, :, :, -partial:].zero_()
