"""Runs CUDA decode kernels on test inputs and checks the results.

If PyTorch finds a GPU, the kernels run on the GPU. Otherwise, the simulator in ``runtime/simt`` runs the kernels on the
CPU, with 64 or 32 threads per warp. The simulator also has a checked mode, in which kernels check and count all their
memory accesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from .. import check, library, op
from ..call import Call, Scratch
from ..choice.dispatch_row import Row
from ..simt import Report
from ..simt.report import Traffic
from . import cases
from .cases import Case, make
from .harness import Harness, check_scratch
from .oracle import attends, excess, window_start

#: The machines (see above) that are the CPU: their names and warp sizes. Checked builds run only on the CPU.
WARP_SIZES = {"warp64": 64, "warp32": 32}
HOSTS = tuple(WARP_SIZES)

_libraries: dict[tuple[str, str, bool], library.Library] = {}


def machines() -> Sequence[str]:
    """Return ``("gpu",)`` if PyTorch finds a GPU, else ``("warp64", "warp32")``: the CPU with 64 and with 32 threads
    per warp.
    """
    return ("gpu",) if torch.cuda.is_available() else HOSTS


def loaded(package: ModuleType, rows: Sequence[Row], machine: str, checked: bool) -> library.Library:
    """Load the library with the kernels of ``rows`` for ``machine``, and compile the library first if necessary.

    Each library is loaded only once in a test session.

    rows: dispatch table rows, one for each kernel.
    machine: ``gpu``, or one of ``HOSTS`` for the CPU.
    checked: whether the kernels check and count all their memory accesses.
    """
    key = (package.__name__, machine, checked)
    if key not in _libraries or not {row.symbol for row in rows} <= _libraries[key].kernels:
        kernels = library.kernels_of(rows, package.kernels.root)
        gpu = machine == "gpu"
        path = library.build(kernels) if gpu else library.build_for_tests(kernels, WARP_SIZES[machine], checked)
        _libraries[key] = library.Library(path)
    return _libraries[key]


class CudaKernel(Harness):
    """Runs a CUDA decode kernel on a GPU or on a simulated GPU, and checks the results."""

    backend = "cuda"

    def __init__(self, package: ModuleType, row: Row, machine: str, rows: Sequence[Row]) -> None:
        super().__init__(package, row)
        self.machine = machine
        self.library = loaded(package, rows, machine, checked=False)

    def launch(self, call: Call) -> None:
        """Run the kernel on the tensors of ``call``.

        On the CPU, thread blocks run in a random order, and so do the threads of a warp.
        """
        if self.library.program is None:
            self.launch_on_gpu(call)
            return
        with self.library.program.session(lane_order="random", block_order="random", seed=len(call.seq_lens)):
            self.library.launch(self.row, call)

    def launch_on_gpu(self, call: Call) -> None:
        """Run the kernel on a GPU copy of the tensors in ``call``, and copy the outputs back to ``call``."""
        moved = cases.to(call, torch.device("cuda"))
        self.library.launch(self.row, moved)
        call.out.copy_(moved.out)
        if call.lse is not None and moved.lse is not None:
            call.lse.copy_(moved.lse)
        for here, there in zip(call.scratch or (), moved.scratch or ()):
            here.copy_(there)

    def check_table(self, case: Case) -> None:
        """Check that the generated operator runs this kernel on the CPU, and gives the same outputs as a direct launch.

        If the kernel runs on a GPU, this method checks nothing.
        """
        if self.machine == "gpu":
            return  # the operator takes tensors of the GPU; test_gpu.py of the project does that
        self.package.kernels.libraries[False] = self.library
        super().check_table(case)

    def check_long(self, case: Case) -> None:
        """Run a test case with long sequences and one KV head, and compare the outputs with float64.

        By default, only the first and the last query head are compared. If the case has a block-sparse pattern or a
        modification of the scores, all query heads are compared, because each head may attend to different keys.
        """
        call = make(case)
        done, count = self.run(call), call.query.shape[1]
        heads = list(range(count)) if case.sparse or case.modification else sorted({0, count - 1})
        done = cases.of_heads(done, heads)
        truth = self.truth(done)
        worst = excess(done.out, truth.out)
        assert worst <= 1, f"the error of out is {worst:.3g} times the allowed error"
        check_scratch(done, truth)


class CheckedKernel(CudaKernel):
    """Runs a CUDA decode kernel on the CPU, and checks its results and all its memory accesses.

    Only ``__syncthreads`` orders the memory accesses of different threads in these runs, because ``__syncwarp`` does
    not order memory accesses on the BI-V100 GPU.

    report: the counters of the memory accesses in the latest launch.
    """

    report: Report

    def __init__(self, package: ModuleType, row: Row, machine: str, rows: Sequence[Row]) -> None:
        Harness.__init__(self, package, row)
        self.machine = machine
        self.library = loaded(package, rows, machine, checked=True)

    def launch(self, call: Call) -> None:
        """Run the kernel on the tensors of ``call``, and check each memory access.

        Raises FindingsError if the kernel accesses memory wrongly, for example past the end of a tensor.
        """
        assert self.library.program is not None
        with self.library.program.session(warp_order="syncthreads") as session:

            def workspace(count: int, device: torch.device, stream: int | None) -> torch.Tensor:
                partials = torch.empty(count, dtype=torch.float32)
                session.buffer("partials", partials, initialised=False)
                return partials

            for name, tensor, writable in buffers(call):
                for indices, piece in cases.dense_pieces(tensor):
                    address, size = extent(piece)
                    session.buffer(name + indices, address, size, writable=writable, initialised=not writable)
            try:
                self.library.launch(self.row, call, workspace=workspace)
            finally:  # a finding can stop the launch; report the finding rather than the failed launch
                self.report = session.report
                self.report.raise_for_findings()

    def check_counters(
        self, *, seq_lens: Sequence[int], page_bytes: int, shared_bytes: int, blocks_per_group: int
    ) -> None:
        """Run the kernel, and check how many bytes the kernel loads from the KV cache and from the block tables.

        This method also checks the size of a thread block's shared memory, and that no access to shared memory has a
        bank conflict.

        seq_lens: the sequence lengths in tokens, which must be multiples of the page size.
        page_bytes: the size in bytes of the keys and the values in a page, for one KV head.
        shared_bytes: the expected size of each thread block's shared memory, in bytes.
        blocks_per_group: the number of thread blocks among which the query heads of one KV head are divided; each of
        these thread blocks loads the keys and values of this KV head.
        """
        call = make(self.case(seq_lens, poison=False, query_gap=0))
        self.run(call)
        pages = pages_read(call)
        loads = [self.report.buffers[name].loads for name in ("key_cache", "value_cache")]
        requested = sum(load.bytes for load in loads)
        assert requested == pages * page_bytes * blocks_per_group, "bytes requested of the cache"
        assert 32 * sum(load.sectors_32 for load in loads) == requested, "whole sectors"
        unique = sum(self.report.buffers[name].bytes_read for name in ("key_cache", "value_cache"))
        assert unique * blocks_per_group == requested, "each byte of the cache once for each block of a group"
        table = self.report.buffers["block_tables"].loads.bytes
        assert table == 4 * pages * blocks_per_group, "bytes of the block tables"
        assert table < requested / 100 or page_bytes < 400, "the block tables are a small part of what is loaded"
        shared = [buffer for buffer in self.report.buffers.values() if buffer.shared]
        passes = sum(buffer.loads.passes + buffer.stores.passes for buffer in shared)
        assert passes == sum(b.loads.passes_ideal + b.stores.passes_ideal for b in shared), "bank conflicts"
        kernel = next(kernel for kernel in self.report.kernels if "partial_kernel" in kernel.name)
        assert (kernel.static_shared, kernel.dynamic_shared) == (shared_bytes, 0), "shared memory"

    def check_far_strides(self, case: Case) -> None:
        """Check that the kernel gives the right results for tensors with strides of more than 2^31 elements.

        The kernel must not access the memory between the elements of a tensor. The test is skipped if the operating
        system does not provide the address space for such strides.
        """
        try:
            call = cases.spread(make(case))
        except OSError as error:
            import pytest

            pytest.skip(f"no address space for far strides: {error}")
        truth = self.truth(call)
        assert check.check(call, self.key.kv_cache_dtype) == self.key
        op.launch(self.launch, call, self.partition_size)
        worst = excess(call.out, truth.out)
        assert worst <= 1, f"the error of out is {worst:.3g} times the allowed error"
        check_scratch(call, truth)

    def check_empty_work(self, *, seq_lens: Sequence[int], max_seq_len: int) -> None:
        """Check that a thread block for a partition past the end of its sequence loads only the length of the sequence.

        The kernel runs twice on the same sequences: with a small ``max_seq_len``, and with the ``max_seq_len`` that the
        caller gives. Each warp must load the length of its sequence once. The kernel must store each element of
        exp_sums and max_logits once. The number of accesses to any other tensor must be equal in both runs.
        """
        least = max(*seq_lens, self.partition_size + 1)  # both calls have a reduction
        tight, roomy = (self._traffic(seq_lens, room) for room in (least, max_seq_len))
        for name in sorted({*tight, *roomy} - {"seq_lens", "exp_sums", "max_logits"}):
            for of_roomy, of_tight in zip(roomy[name], tight[name]):
                same = (of_roomy.accesses, of_roomy.bytes) == (of_tight.accesses, of_tight.bytes)
                assert same, f"loads and stores of {name} depend on max_seq_len"
        warps = sum(kernel.threads for kernel in self.report.kernels) // self.report.warp_size
        assert roomy["seq_lens"][0].accesses == warps, "each warp loads its sequence's length once"
        rows = len(seq_lens) * self.key.gqa_ratio
        for name in ("exp_sums", "max_logits"):
            stored = roomy[name][1].bytes
            assert stored == 4 * rows * -(-max_seq_len // self.partition_size), f"{name} is stored once"

    def _traffic(self, seq_lens: Sequence[int], max_seq_len: int) -> dict[str, tuple[Traffic, Traffic]]:
        """Run the kernel with one KV head. Return, for the name of each buffer, the counters of its loads and of its
        stores.
        """
        self.run(make(self.case(seq_lens, max_seq_len=max_seq_len, kv_heads=1)))
        return {name: (buffer.loads, buffer.stores) for name, buffer in self.report.buffers.items()}


def buffers(call: Call) -> list[tuple[str, torch.Tensor, bool]]:
    """Return a triple for each tensor in ``call``: the name, the tensor, and whether a kernel writes to the tensor."""
    named: dict[str, Any] = {**call._asdict(), **(call.scratch._asdict() if call.scratch else {})}
    named |= {f"tensors[{place}]": tensor for place, tensor in enumerate(call.tensors)}
    written = {"out", "lse", *Scratch._fields}
    return [(name, value, name in written) for name, value in named.items() if isinstance(value, torch.Tensor)]


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address of a tensor's first element, and the number of bytes from this address to the end of the last
    element.
    """
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), (last + 1) * tensor.element_size() if tensor.numel() else 0


def pages_read(call: Call) -> int:
    """Return the number of pages that a kernel must load from the KV cache, summed over sequences and KV heads.

    A kernel must load a page for a KV head if a query head of this KV head attends to a token in the page.
    """
    kv_heads, page = call.key_cache.shape[1], call.key_cache.shape[3]
    group = call.query.shape[1] // kv_heads
    count = 0
    for length in call.seq_lens.tolist():
        for kv_head in range(kv_heads):
            heads = range(kv_head * group, (kv_head + 1) * group)
            for start in range(window_start(call, length) // page * page, length, page):
                needed = call.sparse is None or any(
                    attends(call.sparse, call, h, kv_head, start, length) for h in heads
                )
                count += needed
    return count
