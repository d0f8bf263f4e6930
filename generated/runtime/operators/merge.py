"""The operator ``merge_states``, which merges attention results that were computed over separate ranges of keys.

Attention over key range i has two results: the output o_i and the log-sum-exp lse_i. The log-sum-exp lse_i is the
natural logarithm of the sum of exp(score) over the keys in range i. The merged results are lse = log(sum over i of
exp(lse_i)) and out = sum over i of exp(lse_i - lse) * o_i. If a query attends to no key in range i, then o_i = 0 and
lse_i = -inf. A range without attended keys does not change the merged result.
"""

from __future__ import annotations

import torch

from .. import check
from ..attention.state import LOWEST

NAME = "merge_states"
SCHEMA = f"{NAME}(Tensor(a!) out, Tensor(b!) lse, Tensor outs, Tensor lses) -> ()"


@torch.no_grad()
def merge_states(out: torch.Tensor, lse: torch.Tensor, outs: torch.Tensor, lses: torch.Tensor) -> None:
    """Merge the attention results over several key ranges, and write the merged result to ``out`` and ``lse``.

    In the shapes, states is the number of key ranges, and rows is the number of query tokens.

    outs: [states, rows, query heads, head size], the attention output over each key range.
    lses: [states, rows, query heads] float32, the log-sum-exp over each key range.
    out: [rows, query heads, head size] in the dtype of ``outs``.
    lse: [rows, query heads] float32.

    ``out`` and ``lse`` may be views of one key range's results in ``outs`` and ``lses``. The results of at most one key
    range may include an attention sink, that is, a learned logit that takes part in the softmax. Raises ValueError for
    wrong shapes, dtypes or devices.
    """
    _check(out, lse, outs, lses)
    if outs.shape[0] == 0:
        out.zero_()
        lse.fill_(float("-inf"))
        return
    base = lses.amax(0).clamp_min_(LOWEST)  # [rows, heads]; finite where no state attends anything
    weights = torch.sub(lses, base).exp_()  # [states, rows, heads]
    total = weights.sum(0)
    merged = torch.mul(outs, weights.unsqueeze(-1)).masked_fill_((weights == 0).unsqueeze(-1), 0.0).sum(0)
    out.copy_(merged.div_(total.unsqueeze(-1)).masked_fill_((total == 0).unsqueeze(-1), 0.0))
    lse.copy_(total.log_().add_(base))


def _check(out: torch.Tensor, lse: torch.Tensor, outs: torch.Tensor, lses: torch.Tensor) -> None:
    for name, tensor in (("out", out), ("lse", lse), ("outs", outs), ("lses", lses)):
        check.check_tensor(name, tensor, NAME)
    if outs.dim() != 4 or outs.dtype not in check.DTYPES:
        check.fail(f"outs must be [states, rows, heads, head size], got {check.shape_of(outs)}", NAME)
    if lses.shape != outs.shape[:3] or lses.dtype != torch.float32:
        check.fail(f"lses must be float32 {list(outs.shape[:3])}, got {check.shape_of(lses)}", NAME)
    if out.shape != outs.shape[1:] or out.dtype != outs.dtype:
        wanted = f"{check.dtype_name(outs.dtype)} {list(outs.shape[1:])}"
        check.fail(f"out must be {wanted}, got {check.shape_of(out)}", NAME)
    if lse.shape != lses.shape[1:] or lse.dtype != torch.float32:
        check.fail(f"lse must be float32 {list(lses.shape[1:])}, got {check.shape_of(lse)}", NAME)
    if len({tensor.device for tensor in (out, lse, outs, lses)}) > 1:
        check.fail("all tensors must be on one device", NAME)
