"""The columns of the dispatch table: a row for each kernel, and the results of tuning.

This module is pure Python, because the generator uses it too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

#: Bytes of a mebibyte.
MIB = 1 << 20


class Modification(NamedTuple):
    """A modification of attention that a spec defines: its expressions, and the axis of each parameter tensor.

    score, mask: empty if it has none.
    """

    score: str
    mask: str
    tensors: tuple[tuple[str, str], ...]


#: Whether the host may read the lengths of a call on a GPU (runtime/lengths.py).
HOST_LENGTHS = ("auto", "never")


class Row(NamedTuple):
    """One row of the dispatch table: a kernel's key, its partition size, its sources, and figures of its plan.

    torch, cuda: the PyTorch kernel's module and the CUDA source's path, relative to the package; empty if not built.
    min_seq_len: longer calls prefer V2. fixed_partition: the partition size that the spec prescribes for every call, or
    0. multiprocessors: the number that the spec's target has, 0 if unknown. workspace_mib: the spec's bound of the
    workspace. modification: the definition of the key's modification. host_lengths: whether the host may read the
    lengths of a call on a GPU, one of ``HOST_LENGTHS``. operator: one of ``KEYS``; it determines the type of the key.
    For a cache writer, partition sizes and lengths are 0.

    For an extend kernel, partition_size is the number of keys that a thread block of the CUDA kernel processes, and
    tile_tokens is the number of its query tokens; both are 0 if there is no CUDA kernel. cuda_query_len: calls with
    this max_query_len or less prefer the CUDA kernel.

    These describe the CUDA kernel. resident_blocks: thread blocks that are resident on a multiprocessor.
    saturating_blocks: thread blocks that saturate its bandwidth. blocks_per_group: thread blocks that share the query
    heads of a KV head. empty_tokens: the time of a thread block without tokens, as the number of tokens that a
    multiprocessor processes in that time.
    """

    symbol: str
    spec: str
    key: Any  # the key of its operator: Key, CacheKey
    partition_size: int
    torch: str
    cuda: str
    min_seq_len: int
    fixed_partition: int
    multiprocessors: int
    workspace_mib: int
    modification: Modification | None = None
    operator: str = "decode"
    host_lengths: str = "auto"
    resident_blocks: int = 1
    saturating_blocks: int = 1
    blocks_per_group: int = 1
    empty_tokens: int = 0
    tile_tokens: int = 0
    cuda_query_len: int = 0


class Tuned(NamedTuple):
    """A result of tuning: the row ``symbol`` was the fastest of all rows with its key.

    backend, device, kv_heads, num_seqs, max_seq_len: those of the measured call. The result is used only on a device of
    the same name (``op.device_name``). It is used for calls with at most num_seqs and max_seq_len, and at least half of
    each.
    """

    symbol: str
    backend: str
    device: str
    kv_heads: int
    num_seqs: int
    max_seq_len: int

    def covers(self, num_seqs: int, max_seq_len: int) -> bool:
        """Whether this result is used for a call of this size."""
        return num_seqs <= self.num_seqs < 2 * num_seqs and max_seq_len <= self.max_seq_len < 2 * max_seq_len
