"""Decides whether the host reads the sequence lengths (``seq_lens``) of a call, and caches the values that it read.

Lengths on the CPU are read at each call, which costs nothing. Lengths on a GPU are read only if

* no CUDA graph is being captured,
* the policy is ``auto`` (a spec's ``dispatch: {host_lengths: auto}``, or PAV2_HOST_LENGTHS),
* the read may save more time than it takes, because without lengths, each sequence takes as long as the longest
  sequence of the call,
* and torch keeps a version counter for the tensor. The version shows whether cached values are still valid. All layers
  of a decode step pass the same tensor, so the lengths are read once in a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .attention.tiling import Budget, Tiling
from .call import Call, longest_length
from .choice.dispatch_row import HOST_LENGTHS
from .environment import choice
from .workers import pool
from .workers.shares import Shares


class _Reading(NamedTuple):
    """The lengths that were read from a tensor, and the tensor's version at the time of the read."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    lengths: tuple[int, ...]


_last: dict[tuple[torch.device, str], _Reading] = {}


def may_read(device: torch.device, policy: str) -> bool:
    """Whether the host may read sequence lengths that are stored on ``device``.

    The result is always True for the CPU.

    policy: for a GPU, ``auto`` or ``never``. The environment variable PAV2_HOST_LENGTHS overrides this argument. Raises
    ValueError if the variable has any other value.
    """
    if device.type == "cpu":
        return True
    wanted = choice("PAV2_HOST_LENGTHS", HOST_LENGTHS) or policy
    return wanted == "auto" and device.type == "cuda" and not is_captured(device)


def is_captured(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured on the current stream of ``device``."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def host_lengths(seq_lens: torch.Tensor, worthwhile: bool, name: str = "seq_lens") -> tuple[int, ...] | None:
    """The values of ``seq_lens``, or None if the host does not read them.

    worthwhile: whether knowing the lengths can save more time than a read of device memory costs.
    name: the name of the argument ``seq_lens`` in the operator's call. The last values are cached for each name and
    device.
    """
    if seq_lens.device.type == "cpu":
        return tuple(seq_lens.tolist())
    if not worthwhile or seq_lens.is_inference():  # an inference tensor has no version
        return None
    key = seq_lens.device, name
    last = _last.get(key)
    if last is None or last.tensor() is not seq_lens or last.version != seq_lens._version:
        last = _Reading(weakref.ref(seq_lens), seq_lens._version, tuple(seq_lens.tolist()))
        _last[key] = last
    return last.lengths


def cut(call: Call, budget: Budget, shares: Shares, partition: int, page: int) -> Tiling:
    """Return the tiling of a call, computed from the sequence lengths if the host reads them, else from
    ``max_seq_len``.

    The module ``tiling`` explains tilings. budget: the bounds of the workspace, the memory for intermediate results.
    shares: its bounds if worker threads share the call, which they do only on a CPU.
    partition, page: the number of tokens in a partition and in a page.
    """
    longest, kv_heads, seqs = longest_length(call, page), call.key_cache.shape[1], call.query.shape[0]
    if call.read_lengths:
        padding = (seqs - 1) * -(-longest // page)
        found = host_lengths(call.seq_lens, padding > budget.spare_pages(kv_heads))
        if found is not None:
            lengths = [min(max(length, 0), longest) for length in found]
            return fitted(call, budget, shares, lengths, partition, page, known=True)
    return fitted(call, budget, shares, (longest,) * seqs, partition, page, known=False)


def fitted(
    call: Call, budget: Budget, shares: Shares, lengths: Sequence[int], partition: int, page: int, *, known: bool
) -> Tiling:
    """Return the tiling of a call with sequences of these lengths. ``cut`` and ``Budget.fit`` explain the arguments."""
    kv_heads = call.key_cache.shape[1]
    if call.query.device.type != "cpu":
        return budget.fit(lengths, kv_heads, partition, page, known=known)
    return shares.fit(budget, lengths, kv_heads, partition, page, known=known, available=pool.available)
