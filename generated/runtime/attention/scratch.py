"""Writes a kernel's results for each partition to the caller's scratch tensors: max_logits, exp_sums and tmp_out.

The scratch tensors have the same meaning as in vLLM's paged attention V2. This module also writes the output of
sequences that have only one partition.
"""

from __future__ import annotations

import torch

from ..call import Call, Segment
from .rows import Rows, part_of


def scratch_targets(call: Call, rows: Rows, part: Segment) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return views of max_logits and exp_sums, into which a kernel can write its maxima and sums directly.

    Each view has the sequences and partitions of ``part``, and the shape [sequences, partitions, query heads]. The
    function returns (None, None) if the call has no scratch tensors, or if ``rows`` is sorted by length. After sorting,
    the sequences of ``part`` are not adjacent in the scratch tensors.

    part: the sequences and partitions that the kernel is processing.
    """
    if call.scratch is None or rows.ordered:
        return None, None
    max_logits, exp_sums = (
        part_of(part_of(tensor, 0, part.rows), 2, part.tile.parts).transpose(1, 2)
        for tensor in (call.scratch.max_logits, call.scratch.exp_sums)
    )
    return max_logits, exp_sums


def write_scratch(call: Call, rows: Rows, part: Segment, m: torch.Tensor, z: torch.Tensor, o: torch.Tensor) -> None:
    """Write the softmax results of some partitions to the scratch tensors: max_logits = m, exp_sums = z, tmp_out = o /
    z.

    The function does nothing if the call has no scratch tensors. If ``scratch_targets`` returned views for ``part``,
    the arguments m and z must be these views.

    In the shapes, rows is the number of sequences, and heads is the number of query heads.

    part: the sequences and partitions that the function writes.
    m: the maximum score of each partition, [rows, partitions, heads] float32.
    z: the sum of e^(score - m) over the tokens of each partition, [rows, partitions, heads] float32.
    o: the sum of e^(score - m) times the V vector of each token, [rows, partitions, heads, head size] float32.
    """
    if call.scratch is None:
        return
    exp_sums, max_logits, tmp_out = (part_of(tensor, 2, part.tile.parts) for tensor in call.scratch)
    if rows.ordered:
        rows.put(max_logits, part.rows, m.transpose(1, 2))
        rows.put(exp_sums, part.rows, z.transpose(1, 2))
    rows.put_quotient(tmp_out, part.rows, o.transpose(1, 2), z.transpose(1, 2))


def write_lone_output(call: Call, part: Segment, m: torch.Tensor, z: torch.Tensor, outputs: torch.Tensor) -> None:
    """Copy the attention output of some sequences to ``call.out``. Each of the sequences has only one partition.

    If the call has scratch tensors, the function also copies the attention output to tmp_out. If the call has an lse
    tensor, the function writes the log-sum-exp log(z) + m to ``call.lse``.

    In the shapes, rows is the number of sequences, and heads is the number of query heads.

    part: the sequences that the function writes.
    m: the maximum score of each sequence and query head, [rows, 1, heads] float32.
    z: the sum of e^(score - m) over the tokens, never 0, [rows, 1, heads] float32.
    outputs: the attention output, [rows, 1, heads, head size] float32.
    """
    own = outputs.squeeze(1)
    part_of(call.out, 0, part.rows).copy_(own)
    if call.scratch is not None:
        part_of(call.scratch.tmp_out, 0, part.rows).select(2, part.tile.parts.start).copy_(own)
    if call.lse is not None:
        part_of(call.lse, 0, part.rows).copy_(torch.log(z).add_(m).squeeze(1))


def clear_slots(pages: torch.Tensor, tail: int) -> None:
    """Set the V vectors in the last ``tail`` token slots of a sequence to 0.

    Unused slots may hold NaN, and a softmax weight of 0 times NaN would be NaN.

    pages: the V vectors in the sequence's consecutive pages, [pages, kv_heads, head size, tokens per page].
    """
    blank, partial = divmod(tail, pages.shape[3])
    if blank:
        pages[-blank:].zero_()
    if partial:
        pages[-blank - 1, :, :, -partial:].zero_()
