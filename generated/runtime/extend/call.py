"""The arguments of one extend call, as kernels receive them after the operator has checked them."""

from __future__ import annotations

from typing import NamedTuple

import torch


class ExtendCall(NamedTuple):
    """The arguments of an extend call. The docstring of ``paged_attention_extend`` gives the shapes.

    A row is one query token: one element of the first dimension of ``query``. Kernels clamp the offsets and lengths
    that they read from tensors, so that wrong values cannot make them access memory out of bounds. The following
    holds if the values of query_start_loc do not decrease:

    * Sequence s owns the rows from begin to end (exclusive). begin is query_start_loc[s], clamped to [0, tokens], where
      tokens is the number of rows of ``query``. end is query_start_loc[s + 1], clamped to [begin, tokens]. q_len is
      end - begin.
    * Only the first max_query_len rows of a sequence are computed. ``out`` and ``lse`` are not written for other rows,
      nor for rows that no sequence owns.
    * The length of sequence s is seq_lens[s], clamped to [0, max_seq_len]. max_seq_len is at most the number of tokens
      that the pages of one block table row can hold.
    * Row i of a sequence is at position length - q_len + i, even if max_query_len is less than q_len. A row at a
      negative position attends to no key.

    If query_start_loc is on the CPU and its values decrease, the operator raises ValueError. On a GPU, the operator
    does not read the values of query_start_loc. If values on a GPU decrease, a sequence's rows of ``out`` and ``lse``
    may keep their content, or get the result of another sequence. Rows that no sequence owns are not written.

    A kernel is called only if the numbers of rows and sequences, max_query_len and max_seq_len are all at least 1.
    max_query_len is at most the number of rows of ``query``.

    tensors: the parameter tensors of the attention modification, in the order in which the spec declares them.
    read_lengths: whether the host may read the values of ``query_start_loc`` and ``seq_lens``. If False, the host code
    of a kernel uses only the shapes of these two tensors, ``max_query_len`` and ``max_seq_len``.
    """

    out: torch.Tensor
    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    scale: float
    block_tables: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    max_query_len: int
    max_seq_len: int
    alibi_slopes: torch.Tensor | None
    k_scale: float | torch.Tensor
    v_scale: float | torch.Tensor
    softcap: float | None = None
    sliding_window: int | None = None
    sinks: torch.Tensor | None = None
    modification: str | None = None
    tensors: tuple[torch.Tensor, ...] = ()
    lse: torch.Tensor | None = None
    read_lengths: bool = True
