"""The arguments of one extend call, as kernels receive them after the operator has checked them."""

from __future__ import annotations

from typing import NamedTuple

import torch


class ExtendCall(NamedTuple):
    """The arguments of a call. The docstring of ``paged_attention_extend`` gives the shapes.

    Kernels clamp the values that they read from tensors, so that no value makes them access memory out of bounds:

    * Sequence s owns the rows of ``query`` from begin to end. begin is query_start_loc[s] within [0, tokens]. end is
      query_start_loc[s + 1] within [begin, tokens]. q_len is end - begin.
    * Only the first max_query_len rows of a sequence are computed. The others keep their values in ``out`` and ``lse``,
      as do rows that no sequence owns. The positions of rows do not depend on max_query_len.
    * Its length is seq_lens[s] within [0, max_seq_len]. ``max_seq_len`` is at most what a row of the block table holds.
    * Row i of a sequence is at position length - q_len + i. If that is negative, the row attends to no key.

    A kernel is called with at least one row and one sequence, max_query_len >= 1 and max_seq_len >= 1. max_query_len
    is at most the number of rows of ``query``.

    read_lengths: whether the host may read ``query_start_loc`` and ``seq_lens``. If not, the host code of a kernel
    knows only the shapes, ``max_query_len`` and ``max_seq_len``.
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
