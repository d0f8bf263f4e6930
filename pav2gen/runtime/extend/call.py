"""Defines ``ExtendCall``, the checked arguments of one call of the operator ``paged_attention_extend``."""

from __future__ import annotations

from typing import NamedTuple

import torch


class ExtendCall(NamedTuple):
    """The checked arguments of one call of ``paged_attention_extend``, as a kernel receives them.

    The docstring of ``paged_attention_extend`` gives the shapes of the tensors. A query row is one element of the first
    dimension of ``query``, that is, the query of one token for all heads. Kernels clamp the offsets and lengths that
    they read from tensors, so that wrong values cause no memory access outside of the tensors. Kernels follow these
    rules if the values of ``query_start_loc`` do not decrease:

    * Sequence ``s`` owns the query rows from ``begin`` to ``end``, ``end`` excluded. ``begin`` is query_start_loc[s],
      clamped to [0, tokens], where tokens is the number of query rows. ``end`` is query_start_loc[s + 1], clamped to
      [begin, tokens].

    * A kernel computes only the first ``max_query_len`` query rows of each sequence. A kernel leaves the elements of
      ``out`` and ``lse`` for all other query rows unchanged.

    * The length of sequence ``s`` is seq_lens[s], clamped to [0, max_seq_len]. ``max_seq_len`` is at most the number of
      tokens that fit into the pages of one row of ``block_tables``.

    * The query row ``begin + i`` of sequence ``s`` is at position ``length - (end - begin) + i``, where length is the
      length of the sequence. The position does not depend on ``max_query_len``. A query row at a negative position
      attends to no key.

    If ``query_start_loc`` is on the CPU and its values decrease, the operator raises ValueError. If ``query_start_loc``
    is on a GPU, the operator does not check whether its values decrease. If the values of ``query_start_loc`` decrease
    on a GPU, a kernel may write wrong results, or none, for query rows that sequences own. A kernel never writes
    results for query rows that no sequence owns.

    The operator runs a kernel only if the numbers of query rows and sequences, ``max_query_len`` and ``max_seq_len``
    are all at least 1. ``max_query_len`` is at most the number of query rows.

    tensors: the tensors that the attention modification reads, in the order in which the model's YAML file declares
    them. An attention modification is an expression in that file that changes attention scores or hides keys.
    read_lengths: whether the host code of a kernel may read the values of ``query_start_loc`` and ``seq_lens``.
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
