"""The types of the entries in a package's dispatch table: a row for each kernel, and a ``Tuned`` for each result of
tuning.

This module does not import torch, because the generator, which runs without torch, uses it too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

#: The number of bytes in a mebibyte.
MIB = 1 << 20


class Modification(NamedTuple):
    """A modification of the attention that a spec defines: expressions that change the scores or hide keys.

    score: the expression that replaces a score, or an empty string.
    mask: an expression that is true for the keys that a query attends to, or an empty string.
    tensors: (name, dimension) of each parameter tensor. The dimension is "heads" or "kv_heads": the tensor has one
    number for each query head or for each KV head.
    """

    score: str
    mask: str
    tensors: tuple[tuple[str, str], ...]


#: The possible values of ``host_lengths``: whether the host may read the sequence lengths of a call on a GPU
#: (runtime/lengths.py).
HOST_LENGTHS = ("auto", "never")


class Row(NamedTuple):
    """One row of the dispatch table. A row describes one kernel, which is a PyTorch module, a CUDA source, or both.

    symbol: the kernel's name, and the name of the entry function in the CUDA library.
    spec: the name of the spec that the kernel was built from.
    key: the properties of the calls that the kernel serves. ``key.KEYS`` has the type of the key for each operator.
    partition_size: for a decode kernel, the number of tokens in a partition; for an extend kernel, the number of keys
    that a thread block of the CUDA kernel processes, or 0 without a CUDA kernel; for a cache writer, 0.
    torch: the name of the module with the PyTorch kernel, relative to the package, or an empty string.
    cuda: the path of the CUDA source, relative to the package, or an empty string.
    min_seq_len: the sequence length, in tokens, above which a vLLM fork should use this package's decode operator
    instead of its own kernel.
    fixed_partition: the partition size, in tokens, that the spec prescribes for every call, or 0 if it prescribes none.
    multiprocessors: the number of multiprocessors of the GPU that the spec targets, or 0 if it is unknown.
    workspace_mib: the spec's limit, in MiB, on the memory for the intermediate results of a call.
    modification: the definition of the modification whose name is in the key, or None.
    operator: ``decode``, ``extend`` or ``cache``.
    host_lengths: whether the host may read the sequence lengths of a call on a GPU, one of ``HOST_LENGTHS``.
    resident_blocks: how many thread blocks of the CUDA kernel fit on a multiprocessor at the same time.
    saturating_blocks: how many resident thread blocks are needed to use a multiprocessor's whole memory bandwidth.
    blocks_per_group: the number of thread blocks of the CUDA kernel among which the query heads of one KV head are
    divided.
    empty_tokens: the time that a thread block takes if its partition lies past the end of the sequence. The unit is the
    time in which one multiprocessor processes one token.
    tile_tokens: the number of query tokens that a thread block of an extend CUDA kernel processes, or 0.
    cuda_query_len: if a row has both kernels, the CUDA kernel is chosen only for extend calls with a max_query_len
    (tokens) of at most this number.
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
    """A result of tuning: in a measured call, the kernel ``symbol`` was the fastest of all kernels with its key.

    backend, device, kv_heads, num_seqs, max_seq_len: properties of the measured call. device is a name from
    ``op.device_name``. The result is used for calls that have the same backend, device name and number of KV heads.
    ``covers`` says for which num_seqs and max_seq_len the result is used.
    """

    symbol: str
    backend: str
    device: str
    kv_heads: int
    num_seqs: int
    max_seq_len: int

    def covers(self, num_seqs: int, max_seq_len: int) -> bool:
        """Whether this result is used for a call with these sizes.

        The number of sequences must be at most that of the measured call, and more than half of that. max_seq_len must
        be at most that of the measured call, and more than half of that.
        """
        return num_seqs <= self.num_seqs < 2 * num_seqs and max_seq_len <= self.max_seq_len < 2 * max_seq_len
