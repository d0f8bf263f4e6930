"""Defines the entries of the dispatch table, from which a generated package chooses the kernel for each call.

A ``Row`` describes a kernel, and a ``Tuned`` describes a tuning result. This module does not import torch, because the
generator runs without torch and also uses this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

#: The number of bytes in a mebibyte.
MIB = 1 << 20


class Modification(NamedTuple):
    """A change that a spec (a YAML file) makes to attention. The spec gives an expression for the scores, an expression
    for the mask, or both expressions.

    score: the expression that replaces each score, or an empty string.
    mask: the expression that is true for the keys that a query attends to, or an empty string.
    tensors: the name and the dimension of each parameter tensor, where "heads" means one number for each query head,
    and "kv_heads" means one number for each KV head.
    """

    score: str
    mask: str
    tensors: tuple[tuple[str, str], ...]


#: The possible values of ``host_lengths``: whether the host may read the sequence lengths of a call on a GPU
#: (runtime/lengths.py).
HOST_LENGTHS = ("auto", "never")


class Row(NamedTuple):
    """One row of the dispatch table, which describes one kernel: a PyTorch module, a CUDA source, or both.

    symbol: the kernel's name, which is also the name of the entry function in the CUDA library.
    spec: the name of the spec (the YAML file) from which the kernel was generated.
    key: the properties of the calls that the kernel can compute, of the type that ``key.KEYS`` lists for the operator.
    operator: the operator that the kernel implements: ``decode``, ``extend`` or ``cache``.
    torch: the name of the module with the PyTorch kernel, relative to the package, or an empty string.
    cuda: the path of the CUDA source, relative to the package, or an empty string.
    modification: the definition of the attention modification that ``key`` names, or None.

    partition_size: for a decode kernel, the number of tokens in a partition; for an extend kernel, the number of keys
    that a thread block of the CUDA kernel processes, or 0 without a CUDA kernel; for a cache writer, 0.

    fixed_partition: the partition size, in tokens, of all calls that do not choose a partition size, or 0 if the spec
    prescribes no partition size.

    min_seq_len: the sequence length, in tokens, above which a vLLM fork should use this package's decode operator
    instead of the fork's own kernel.

    multiprocessors: the number of multiprocessors of the GPU for which the spec builds kernels, or 0 if the number is
    unknown.

    workspace_mib: the spec's limit on the memory for the intermediate results of a call, in MiB.

    host_lengths: whether the host may read the sequence lengths of a call on a GPU, one of ``HOST_LENGTHS``.

    resident_blocks: the number of thread blocks of the CUDA kernel that fit on a multiprocessor at the same time.

    saturating_blocks: the number of resident thread blocks that a multiprocessor needs to use its full share of the
    memory bandwidth.

    blocks_per_group: the number of thread blocks among which the CUDA kernel divides the query heads of one KV head.

    empty_tokens: the time of a thread block whose partition begins past the end of the sequence, in units of the time
    in which one multiprocessor processes one token.

    tile_tokens: the number of query tokens that a thread block of an extend CUDA kernel processes, or 0.

    cuda_query_len: the largest max_query_len, in tokens, for which extend calls use the CUDA kernel of a row that also
    has a PyTorch kernel.
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
    """A tuning result: the kernel ``symbol`` was faster in a measured call than all other kernels with the same key.

    The tuning result applies only to calls with the same backend, device and number of KV heads. ``Tuned.covers``
    decides whether the tuning result applies to a call of other sizes.

    symbol: the name of the fastest kernel.
    backend, kv_heads: the backend and the number of KV heads of the measured call.
    device: the name of the measured device, from ``op.device_name``.
    num_seqs, max_seq_len: the number of sequences and the maximum length, in tokens, of the measured call.
    """

    symbol: str
    backend: str
    device: str
    kv_heads: int
    num_seqs: int
    max_seq_len: int

    def covers(self, num_seqs: int, max_seq_len: int) -> bool:
        """Whether the tuning result applies to a call with ``num_seqs`` sequences of up to ``max_seq_len`` tokens.

        Both arguments must be at most as large as in the measured call, and more than half as large.
        """
        return num_seqs <= self.num_seqs < 2 * num_seqs and max_seq_len <= self.max_seq_len < 2 * max_seq_len
