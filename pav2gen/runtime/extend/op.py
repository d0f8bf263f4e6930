"""Registers the operator ``paged_attention_extend`` with torch.library.

For each call, the operator checks the arguments, chooses a kernel from the dispatch table, and runs the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from .. import check as checks
from ..choice.dispatch_row import Row
from ..choice.select import Table
from ..lengths import may_read
from ..operators.loaded import Kernels
from ..operators.modification_tensors import ordered_tensors
from ..operators.registration import register
from . import check
from .call import ExtendCall

SCHEMA = f"""{check.NAME}(
    Tensor(a!) out, Tensor query, Tensor key_cache, Tensor value_cache, float scale, Tensor block_tables,
    Tensor query_start_loc, Tensor seq_lens, int max_query_len, int max_seq_len, Tensor? alibi_slopes,
    str kv_cache_dtype, float k_scale, float v_scale, Tensor? k_scale_tensor, Tensor? v_scale_tensor, float? softcap,
    int? sliding_window, Tensor? sinks, str modification, Tensor[] modification_tensors, Tensor(b!)? lse,
    str backend) -> ()"""


class Arguments(NamedTuple):
    """The arguments of the registered operator, in the order of its schema."""

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
    kv_cache_dtype: str
    k_scale: float
    v_scale: float
    k_scale_tensor: torch.Tensor | None
    v_scale_tensor: torch.Tensor | None
    softcap: float | None
    sliding_window: int | None
    sinks: torch.Tensor | None
    modification: str
    modification_tensors: list[torch.Tensor]
    lse: torch.Tensor | None
    backend: str

    def call(self) -> ExtendCall:
        """Convert the arguments to an ``ExtendCall``, the form that kernels receive, without checking them."""
        return ExtendCall(
            out=self.out,
            query=self.query,
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            scale=self.scale,
            block_tables=self.block_tables,
            query_start_loc=self.query_start_loc,
            seq_lens=self.seq_lens,
            max_query_len=self.max_query_len,
            max_seq_len=self.max_seq_len,
            alibi_slopes=self.alibi_slopes,
            k_scale=self.k_scale if self.k_scale_tensor is None else self.k_scale_tensor,
            v_scale=self.v_scale if self.v_scale_tensor is None else self.v_scale_tensor,
            softcap=self.softcap,
            sliding_window=self.sliding_window,
            sinks=self.sinks,
            modification=self.modification or None,
            tensors=tuple(self.modification_tensors),
            lse=self.lse,
        )


class ExtendOperator:
    """Registers the extend operator of one generated package, and runs its calls.

    kernels: the kernels of the package.
    files: the path of each spec (a YAML file from which pav2gen generated kernels of the package), by the spec's name,
    for error messages.
    """

    def __init__(self, kernels: Kernels, files: Mapping[str, str] | None = None) -> None:
        self.kernels = kernels
        self.table = Table(kernels.rows, files=files, operator="extend")
        self.check = checks.Layouts(check.check, check.layout_of).check
        self._library, self.op = register(kernels.package, check.NAME, SCHEMA, self.run)

    def ordered_tensors(
        self, modification: str | None, given: Mapping[str, torch.Tensor] | None
    ) -> tuple[torch.Tensor, ...]:
        """Return the parameter tensors of an attention modification, in the order in which its definition lists the
        tensors.

        A modification is an expression that changes attention scores or hides keys. Raises ValueError if a tensor is
        missing, or if ``given`` has a name that the definition does not list.

        modification: the modification's name, or None. given: a mapping from the name of each tensor to the tensor, or
        None.
        """
        return ordered_tensors(self.table, modification, given, check.NAME)

    @torch.no_grad()
    def run(self, *args: Any) -> None:
        """Check the arguments of a call, choose a kernel, and run the kernel. PyTorch's dispatcher calls this method.

        args: the arguments in the order of the operator's schema.
        """
        arguments = Arguments(*args)
        call = arguments.call()
        key, _ = self.check(call, arguments.kv_cache_dtype)
        check.check_starts(call.query_start_loc)
        tokens, longest = call.query.shape[0], call.block_tables.shape[1] * key.block_size
        call = call._replace(max_seq_len=min(call.max_seq_len, longest), max_query_len=min(call.max_query_len, tokens))
        on_gpu, rows = call.query.is_cuda, self.table.serving(key)
        backend = self.kernels.backend(arguments.backend, preferring_cuda(rows, call.max_query_len), on_gpu, check.NAME)
        row = self.table.of_backend(key, backend)[0]
        checks.check_tensors(call, row.modification, check.NAME)
        if backend == "torch":  # a CUDA kernel reads the lengths on the device
            call = call._replace(read_lengths=may_read(call.query.device, row.host_lengths))
        launch(self.kernel(row, backend, on_gpu), call)

    def kernel(self, row: Row, backend: str, on_gpu: bool) -> Callable[[ExtendCall], None]:
        """Return a function that runs the kernel of a dispatch-table row on a call with checked arguments.

        Raises LibraryError if ``backend`` is "cuda" and no library of CUDA kernels is loaded.

        on_gpu: whether the tensors of the call are on a GPU.
        """
        if backend == "torch":
            return self.kernels.module(row).paged_attention_extend  # type: ignore[no-any-return]
        from .launch import launch as launch_cuda

        library = self.kernels.library(on_gpu)
        return lambda call: launch_cuda(library.function(row), call, row, library.explain)


def preferring_cuda(rows: Iterable[Row], max_query_len: int) -> list[Row]:
    """Return the dispatch-table rows from ``rows`` for which a call on a GPU should use the CUDA kernel.

    The result has the rows whose CUDA kernel is faster than their PyTorch kernel for calls with this ``max_query_len``.
    The result also has the rows without a PyTorch kernel.
    """
    return [row for row in rows if max_query_len <= row.cuda_query_len or not row.torch]


def launch(kernel: Callable[[ExtendCall], None], call: ExtendCall) -> None:
    """Run ``kernel`` on a call with checked arguments, unless the call has no query row to compute.

    If ``call.max_seq_len`` is 0, the function writes the outputs without the kernel, because no sequence has a key to
    attend to.
    """
    if not (call.seq_lens.shape[0] and call.max_query_len and call.query.shape[0]):
        return
    if call.max_seq_len:
        kernel(call)
    else:
        attend_nothing(call)


def attend_nothing(call: ExtendCall) -> None:
    """Write the outputs of a call whose ``max_seq_len`` is 0, so that no sequence has a key to attend to.

    For the query rows that the call computes, ``out`` becomes 0, and ``lse`` becomes the attention sink of each head,
    or -inf without sinks. The function does not write to other query rows.
    """
    owned = owned_rows(call)  # [tokens]
    call.out.masked_fill_(owned.view(-1, 1, 1), 0.0)
    if call.lse is not None:
        sinks = torch.full_like(call.lse, float("-inf")) if call.sinks is None else call.sinks.expand_as(call.lse)
        call.lse.copy_(torch.where(owned.unsqueeze(1), sinks, call.lse))


def owned_rows(call: ExtendCall) -> torch.Tensor:
    """Find the query rows that the call computes, that is, the first ``max_query_len`` query rows of each sequence.

    Returns a bool tensor [query rows] on the call's device, which is True for the computed query rows.
    """
    tokens = call.query.shape[0]
    begin = call.query_start_loc[:-1].clamp(0, tokens)
    end = torch.minimum(call.query_start_loc[1:].clamp(0, tokens), begin + call.max_query_len)
    steps = torch.zeros(tokens + 1, dtype=torch.int32, device=begin.device)
    one = (end > begin).int()
    steps.index_add_(0, begin, one).index_add_(0, torch.maximum(begin, end), -one)
    return steps.cumsum(0)[:tokens] > 0
