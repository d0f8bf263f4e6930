"""The decode operator: vLLM's ``paged_attention_v2``, registered with torch.library.

The operator chooses a kernel from the package's dispatch table for each call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from . import check
from .call import BlockSparse, Call, Scratch, clear_scratch
from .choice.dispatch_row import Row, Tuned
from .choice.select import Table
from .lengths import is_captured, may_read
from .operators.loaded import Kernels
from .operators.modification_tensors import ordered_tensors
from .operators.registration import register

NAME = "paged_attention_v2"
SCHEMA = f"""{NAME}(
    Tensor(a!) out, Tensor(b!) exp_sums, Tensor(c!) max_logits, Tensor(d!) tmp_out, Tensor query, Tensor key_cache,
    Tensor value_cache, float scale, Tensor block_tables, Tensor seq_lens, int max_seq_len, Tensor? alibi_slopes,
    str kv_cache_dtype, float k_scale, float v_scale, Tensor? k_scale_tensor, Tensor? v_scale_tensor, int tp_rank,
    int blocksparse_local_blocks, int blocksparse_vert_stride, int blocksparse_block_size,
    int blocksparse_head_sliding_step, float? softcap, int? sliding_window, Tensor? sinks, str modification,
    Tensor[] modification_tensors, Tensor(e!)? lse, str backend, int partition_size) -> ()"""


class Arguments(NamedTuple):
    """The arguments of the decode operator in the order of ``SCHEMA``, as torch's dispatcher passes them."""

    out: torch.Tensor
    exp_sums: torch.Tensor
    max_logits: torch.Tensor
    tmp_out: torch.Tensor
    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    scale: float
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    max_seq_len: int
    alibi_slopes: torch.Tensor | None
    kv_cache_dtype: str
    k_scale: float
    v_scale: float
    k_scale_tensor: torch.Tensor | None
    v_scale_tensor: torch.Tensor | None
    tp_rank: int
    blocksparse_local_blocks: int
    blocksparse_vert_stride: int
    blocksparse_block_size: int
    blocksparse_head_sliding_step: int
    softcap: float | None
    sliding_window: int | None
    sinks: torch.Tensor | None
    modification: str
    modification_tensors: list[torch.Tensor]
    lse: torch.Tensor | None
    backend: str
    partition_size: int

    def call(self) -> Call:
        """Convert the arguments to a ``Call``, the form that kernels receive.

        The method does not check the arguments.
        """
        sparse = None
        if self.blocksparse_vert_stride > 1:
            sparse = BlockSparse(
                local_blocks=self.blocksparse_local_blocks,
                vert_stride=self.blocksparse_vert_stride,
                block_size=self.blocksparse_block_size,
                head_sliding_step=self.blocksparse_head_sliding_step,
                tp_rank=self.tp_rank,
            )
        return Call(
            out=self.out,
            scratch=Scratch(self.exp_sums, self.max_logits, self.tmp_out),
            query=self.query,
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            scale=self.scale,
            block_tables=self.block_tables,
            seq_lens=self.seq_lens,
            max_seq_len=self.max_seq_len,
            alibi_slopes=self.alibi_slopes,
            k_scale=self.k_scale if self.k_scale_tensor is None else self.k_scale_tensor,
            v_scale=self.v_scale if self.v_scale_tensor is None else self.v_scale_tensor,
            sparse=sparse,
            softcap=self.softcap,
            sliding_window=self.sliding_window,
            sinks=self.sinks,
            modification=self.modification or None,
            tensors=tuple(self.modification_tensors),
            lse=self.lse,
        )


class Operator:
    """Registers the decode operator of one generated package with torch, and runs the operator's calls.

    kernels: the kernels of the package.
    tuned: the results of tuning (see ``dispatch_row.Tuned``), which the operator uses to choose a kernel.
    files: the paths of the spec files, by the names of the specs, for error messages.
    """

    def __init__(
        self,
        kernels: Kernels,
        tuned: Iterable[Tuned] = (),
        files: Mapping[str, str] | None = None,
    ) -> None:
        self.kernels = kernels
        self.table = Table(kernels.rows, tuned, files)
        self.check = check.Layouts(check.check, check.layout_of).check
        self._library, self.op = register(kernels.package, NAME, SCHEMA, self.run)

    def run(self, *args: Any) -> None:
        """Check the arguments, choose a kernel, and launch the kernel, all without recording gradients.

        torch's dispatcher calls this method.
        """
        if not torch.is_grad_enabled():
            self._run(*args)
            return
        with torch.no_grad():
            self._run(*args)

    def _run(self, *args: Any) -> None:
        """Check the arguments, choose a kernel, and launch the kernel."""
        arguments = Arguments(*args)
        call = arguments.call()
        key, layout = self.check(call, arguments.kv_cache_dtype)
        longest = call.block_tables.shape[1] * key.block_size
        if call.max_seq_len > longest:  # tested first, because _replace is slow
            call = call._replace(max_seq_len=longest)
        on_gpu, device = call.query.is_cuda, call.query.device
        backend = self.kernels.backend(arguments.backend, self.table.serving(key), on_gpu)
        num_seqs, kv_heads = call.query.shape[0], call.key_cache.shape[1]
        asked = arguments.partition_size
        captured = is_captured(device)
        row = self.table.choose(
            key, backend, num_seqs, call.max_seq_len, kv_heads, asked, device_name(device), captured
        )
        check.check_tensors(call, row.modification)
        if backend == "torch" and not may_read(device, row.host_lengths):  # CUDA kernels never read lengths
            call = call._replace(read_lengths=False)
        launch(self.kernel(row, backend, on_gpu, layout), call, row.partition_size)

    def ordered_tensors(
        self, modification: str | None, given: Mapping[str, torch.Tensor] | None
    ) -> tuple[torch.Tensor, ...]:
        """Return the parameter tensors of an attention modification, in the order of the modification's definition.

        modification: the name of an expression in a spec that changes scores or hides keys, or None.
        given: the tensors by their names.

        Raises ValueError if a tensor is missing or if the modification has no tensor of a given name.
        """
        return ordered_tensors(self.table, modification, given)

    def kernel(self, row: Row, backend: str, on_gpu: bool, layout: Hashable | None = None) -> Callable[[Call], None]:
        """Return a function that runs the kernel of a dispatch table row on a call.

        layout: an object that identifies the call's layout (see ``check.Layouts``), or None. Launches of a CUDA kernel
        with the same layout share a prepared C struct of arguments.

        Raises LibraryError if ``backend`` is "cuda" and no library for the device is loaded.
        """
        if backend == "cuda":
            return functools.partial(self.kernels.library(on_gpu).launch, row, layout=layout)
        return self.kernels.module(row).paged_attention  # type: ignore[no-any-return]


@functools.cache
def device_name(device: torch.device) -> str:
    """Return the name of a device in tuning results: torch's name of the GPU, or the device type, such as ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def launch(kernel: Callable[[Call], None], call: Call, partition_size: int) -> None:
    """Run a kernel on a checked call, or write the results without a kernel if the call has no tokens.

    A call has no tokens if the call has no sequences or if ``max_seq_len`` is 0. For a call without tokens, the
    function fills ``out`` with zeros. For a call without tokens, the function fills ``lse`` with each head's sink, or
    with -inf if the call has no sinks.

    The kernel receives the caller's scratch tensors only if the tensors can hold all partitions of ``max_seq_len``
    tokens.

    partition_size: the number of tokens in a partition.
    """
    partitions = -(-call.max_seq_len // partition_size)
    if call.scratch is not None and check.usable_scratch(call.scratch, partitions) is None:
        call = call._replace(scratch=None)
    clear_scratch(call.scratch, partitions)
    if call.query.shape[0] == 0 or partitions == 0:
        call.out.zero_()
        if call.lse is not None:
            call.lse.copy_(torch.full_like(call.lse, float("-inf")) if call.sinks is None else call.sinks)
    else:
        kernel(call)
