"""Makes the inputs for tests of extend kernels. An ``ExtendCase`` describes a call, and ``make`` creates the call.

``make`` fills the tensors with random numbers on the CPU, from a fixed seed, in vLLM's layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from ..testing import cases
from ..testing.cases import Case, far_apart, pages_of
from .call import ExtendCall

#: Before a call, all elements of ``out`` and ``lse`` have this value. Rows that the call does not compute must keep it.
SENTINEL = 77.0

#: The ``partition_size``, in tokens, of all extend cases that a harness makes. Nothing depends on it, because the
#: partition size of an extend kernel does not come from the case.
ONE_PARTITION = 1 << 30


@dataclass(frozen=True)
class ExtendCase(Case):
    """Describes the inputs of a test of an extend kernel. The class ``Case`` explains the fields that are not listed
    here.

    seq_lens: the length of each sequence in tokens, new tokens included.
    partition_size: not used.
    query_lens: the number of new tokens of each sequence.
    max_query_len: the argument ``max_query_len`` of the call, or None for the largest of ``query_lens``.
    leading_rows, trailing_rows: the numbers of query rows before the first sequence and after the last sequence, which
    no sequence owns and which ``make`` fills with NaN.
    shared_pages: the number of pages at the start of sequence 0 that the other sequences use in place of their own
    pages. Sequence 0 shares a page with another sequence only if the tokens of both sequences fill the page.
    starts: the values of ``query_start_loc`` for tests with invalid values, or an empty tuple to compute valid values
    from ``query_lens`` and ``leading_rows``. If ``starts`` is not empty, ``query_lens`` must be the numbers of query
    rows that the sequences own after a kernel has clamped the values of ``starts``.
    tokens: the number of query rows in the call. The field ``tokens`` is required if ``starts`` is given, and not used
    otherwise.
    """

    query_lens: Sequence[int] = ()
    max_query_len: int | None = None
    leading_rows: int = 0
    trailing_rows: int = 0
    shared_pages: int = 0
    starts: Sequence[int] = ()
    tokens: int = 0

    @property
    def most_queries(self) -> int:
        """The value of the argument ``max_query_len`` in the call that this case describes."""
        return max(self.query_lens, default=0) if self.max_query_len is None else self.max_query_len

    def attended(self, s: int) -> range:
        """Return the positions of the keys in sequence ``s`` to which the computed query rows of the sequence may
        attend.
        """
        rows = min(self.query_lens[s], self.most_queries)
        stop = max(0, min(self.seq_lens[s], self.longest))
        if rows <= 0:
            return range(0)
        first = max(0, stop - rows)  # the position of the first row that attends anything
        window = self.key.sliding_window
        return range(max(0, first + 1 - window) if window else 0, stop)


def make(case: ExtendCase) -> ExtendCall:
    """Create the call that a case describes, on the CPU.

    Queries, keys and values are random numbers from a standard normal distribution. All elements of ``out`` and ``lse``
    have the value of the constant ``SENTINEL``.
    """
    call = cases.make(case)  # a decode call with the same block tables, caches and features
    generator = torch.Generator().manual_seed(case.seed + 1_000_003)
    heads, head_size = call.query.shape[1:]
    starts = case.starts or tuple(accumulate(case.query_lens, initial=case.leading_rows))
    tokens, dtype = case.tokens or starts[-1] + case.trailing_rows, call.query.dtype
    rows = torch.randn(tokens, heads * head_size + case.query_gap, generator=generator).to(dtype)
    if not case.starts:
        rows[: case.leading_rows] = rows[starts[-1] :] = float("nan")
    key_cache, value_cache = share_pages(case, call.block_tables, call.key_cache, call.value_cache)
    return ExtendCall(
        out=torch.full((tokens, heads, head_size), SENTINEL, dtype=dtype),
        query=rows[:, : heads * head_size].unflatten(1, (heads, head_size)),
        key_cache=key_cache,
        value_cache=value_cache,
        scale=call.scale,
        block_tables=call.block_tables,
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=call.seq_lens,
        max_query_len=case.most_queries,
        max_seq_len=call.max_seq_len,
        alibi_slopes=call.alibi_slopes,
        k_scale=call.k_scale,
        v_scale=call.v_scale,
        softcap=call.softcap,
        sliding_window=call.sliding_window,
        sinks=call.sinks,
        modification=call.modification,
        tensors=call.tensors,
        lse=torch.full((tokens, heads), SENTINEL),
    )


def share_pages(
    case: ExtendCase, tables: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Change the block tables so that all sequences begin with the same pages, as sequences with a common prefix do.

    ``case.shared_pages`` is the number of pages to share. If ``case.poison`` is true, this function writes NaN to the
    cache blocks that no sequence uses any more. The function changes the tensors in place, and returns ``key_cache``
    and ``value_cache``.
    """
    if not case.shared_pages or case.shared_blocks:
        return key_cache, value_cache
    page, first = case.key.block_size, pages_of(case, 0)
    for s in range(1, len(case.seq_lens)):
        own = pages_of(case, s)
        for column in range(max(first.start, own.start), min(case.shared_pages, first.stop, own.stop)):
            if (column + 1) * page <= min(case.attended(0).stop, case.attended(s).stop):
                tables[s, column] = tables[0, column]
    if case.poison:
        cases.poison(case, key_cache, value_cache, tables)
    return key_cache, value_cache


def copy_outputs(call: ExtendCall) -> ExtendCall:
    """Return the call with copies of ``out`` and ``lse``, so that a kernel does not change the original tensors."""
    return call._replace(out=call.out.clone(), lse=None if call.lse is None else call.lse.clone())


def to(call: ExtendCall, device: torch.device) -> ExtendCall:
    """Copy all tensors of a call to ``device``, and return the call with the copies. The copies keep the strides of the
    original tensors.
    """

    def move(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(move, value))
        if not isinstance(value, torch.Tensor):
            return value
        moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return moved.copy_(value)

    return ExtendCall(*map(move, call))  # type: ignore[arg-type]


def spread(call: ExtendCall) -> ExtendCall:
    """Return a call with the same values, in which the query, the caches and the block tables have strides over 2^31
    elements.

    The tensors of ``call`` must be on the CPU. Raises OSError if the system does not let a process reserve more address
    space than there is memory.
    """
    return call._replace(
        query=far_apart(call.query, axes=1),
        key_cache=far_apart(call.key_cache, axes=2),
        value_cache=far_apart(call.value_cache, axes=2),
        block_tables=far_apart(call.block_tables, axes=1),
    )


def of_decode(case: ExtendCase, partition_size: int) -> Case:
    """Convert a case for an extend kernel to a case for a decode kernel, with the same sequences, block tables and
    caches.

    case: the case for the extend kernel, with exactly one new token in each sequence.
    partition_size: the number of tokens in a partition of the decode kernel.
    """
    fields = {name: getattr(case, name) for name in Case.__dataclass_fields__}
    return Case(**{**fields, "partition_size": partition_size})
