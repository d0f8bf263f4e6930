"""The float64 reference of the extend operator, built on the float64 reference of the decode operator.

The reference shares no code with the kernels. A query row is the query of one token for all heads.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch

from ..call import Call
from ..choice.dispatch_row import Modification
from ..testing.oracle import attention, gather, groups, score
from .call import ExtendCall


class Reference(NamedTuple):
    """The results of an extend call in float64. For query rows that the call does not compute, ``out`` is 0 and ``lse``
    is -inf.
    """

    out: torch.Tensor  # [tokens, heads, head size] float64
    lse: torch.Tensor  # [tokens, heads] float64
    owned: torch.Tensor  # [tokens] bool, True for the rows that the call computes


def owned_ranges(call: ExtendCall) -> list[range]:
    """Return the range of query rows that each sequence owns.

    The function clamps the values of ``query_start_loc`` as the docstring of ``ExtendCall`` describes.
    """
    tokens, bounds = call.query.shape[0], call.query_start_loc.tolist()
    ranges = []
    for first, last in itertools.pairwise(bounds):
        begin = min(max(first, 0), tokens)
        ranges.append(range(begin, max(begin, min(last, tokens))))
    return ranges


def row_ranges(call: ExtendCall) -> list[range]:
    """Return, for each sequence, the range of query rows that the call computes: the first ``max_query_len`` query
    rows.
    """
    return [rows[: call.max_query_len] for rows in owned_ranges(call)]


def reference(call: ExtendCall, kv_cache_dtype: str, modification: Modification | None = None) -> Reference:
    """Compute the results of an extend call in float64. The tensors of the call must be on the CPU.

    kv_cache_dtype: the operator's argument of this name, such as "auto". modification: the definition of the attention
    modification that ``call.modification`` names, or None.
    """
    tokens, heads, head_size = call.query.shape
    result = Reference(
        out=torch.zeros(tokens, heads, head_size, dtype=torch.float64),
        lse=torch.full((tokens, heads), -math.inf, dtype=torch.float64),
        owned=torch.zeros(tokens, dtype=torch.bool),
    )
    for s, rows in enumerate(row_ranges(call)):
        if rows:
            result.owned[rows.start : rows.stop] = True
            attend(call, s, rows, result, kv_cache_dtype, modification)
    return result


def attend(
    call: ExtendCall,
    s: int,
    rows: range,
    result: Reference,
    kv_cache_dtype: str,
    modification: Modification | None,
) -> None:
    """Compute ``out`` and ``lse`` for the query rows ``rows``, which belong to sequence ``s``, and write them to
    ``result``.
    """
    decode = as_decode(call)
    capacity = min(call.max_seq_len, call.block_tables.shape[1] * call.key_cache.shape[3])
    length = max(0, min(int(call.seq_lens[s]), capacity))
    context = length - len(owned_ranges(call)[s])
    window = call.sliding_window
    start = 0 if window is None else max(0, context + 1 - window)
    keys, values = gather(decode, s, kv_cache_dtype, start)  # [kv heads, tokens, head size] float64
    for i, row in enumerate(rows):
        seen = max(0, context + i + 1)  # tokens up to and including the row
        for kv_head, group in enumerate(groups(decode)):
            scores = score(decode, row, group, keys[kv_head, :seen], modification, length)
            out, lse = attention(decode, group, scores, values[kv_head, :seen])
            result.out[row, group.start : group.stop], result.lse[row, group.start : group.stop] = out, lse


def as_decode(call: ExtendCall) -> Call:
    """Convert an extend call to a decode call, for functions of the decode reference such as ``gather`` and ``score``.

    The decode call has the same tensors. ``score`` then takes the index of a query row in place of the index of a
    sequence.
    """
    shared = {name: value for name, value in call._asdict().items() if name in Call._fields}
    return Call(scratch=None, sparse=None, **shared)
