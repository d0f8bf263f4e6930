"""Decides whether the host reads the sequence lengths (``seq_lens``) of a call, and caches the lengths of GPU tensors.

Before the host runs a PyTorch kernel, the host reads ``seq_lens`` if the tensor is on the CPU. CUDA kernels read
``seq_lens`` themselves.

The host never reads ``seq_lens`` from a GPU while a CUDA graph is being captured. In a spec, the YAML file that
describes a model's kernels, ``host_lengths: never`` forbids reads from a GPU. The environment variable
PAV2_HOST_LENGTHS overrides ``host_lengths`` of the spec. The host skips a read from a GPU that would cost more time
than the lengths can save. Without the lengths, a PyTorch kernel processes every sequence as if it had the maximum
length.

The host never reads an inference tensor from a GPU, because torch counts no versions of inference tensors. An unchanged
version number of a tensor shows that the cached lengths are still valid. All layers of a decode step pass the same
tensor, so the host reads the lengths only once per step.
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
    """The lengths that the host read from a tensor, and the tensor's version number at the time of the read."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    lengths: tuple[int, ...]


_last: dict[tuple[torch.device, str], _Reading] = {}


def may_read(device: torch.device, policy: str) -> bool:
    """Return whether the host may read sequence lengths that are stored on ``device``. The result is always True for
    the CPU.

    policy: ``auto`` allows reads from a GPU, and ``never`` forbids reads from a GPU. The environment variable
    PAV2_HOST_LENGTHS overrides this argument.

    Raises ValueError if ``device`` is not the CPU and PAV2_HOST_LENGTHS is set to anything but ``auto`` or ``never``.
    """
    if device.type == "cpu":
        return True
    wanted = choice("PAV2_HOST_LENGTHS", HOST_LENGTHS) or policy
    return wanted == "auto" and device.type == "cuda" and not is_captured(device)


def is_captured(device: torch.device) -> bool:
    """Return whether a CUDA graph is being captured on the current stream of ``device``."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def host_lengths(seq_lens: torch.Tensor, worthwhile: bool, name: str = "seq_lens") -> tuple[int, ...] | None:
    """Return the values of ``seq_lens``, or None if the host does not read the tensor.

    worthwhile: whether the kernel saves more time with the lengths than the host spends on reading them from the GPU.
    name: the operator's name for the argument ``seq_lens``. The latest values are cached for each name and device.
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
    """Return the tiling of a call, that is, its division into pieces of work whose intermediate results fit in memory.

    The tiling depends on the sequence lengths if the host reads the lengths, else on ``max_seq_len``. The docstring of
    attention/tiling.py describes tilings.

    budget: the memory limits for a call that one thread computes.
    shares: the memory limits for a call that worker threads share. Only calls on a CPU use worker threads.
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
    """Return the tiling of a call whose sequences have the lengths ``lengths``, in tokens.

    The docstrings of ``cut`` and ``Budget.fit`` describe the arguments.
    """
    kv_heads = call.key_cache.shape[1]
    if call.query.device.type != "cpu":
        return budget.fit(lengths, kv_heads, partition, page, known=known)
    return shares.fit(budget, lengths, kv_heads, partition, page, known=known, available=pool.available)
