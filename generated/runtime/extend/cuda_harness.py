"""Test harnesses that run CUDA extend kernels on a GPU, or on the CPU with ``runtime.simt``.

On the CPU, a kernel can also run in a checked build, in which each of its memory accesses is checked and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import torch

from ..choice.dispatch_row import Row
from ..simt import Report
from ..simt.report import Traffic
from ..testing.cases import dense_pieces
from ..testing.cuda_harness import CudaKernel, extent, loaded
from ..testing.harness import Harness
from . import cases
from .call import ExtendCall
from .cases import ExtendCase
from .harness import ExtendHarness
from .launch import launch


class CudaExtend(ExtendHarness):
    """A test harness that runs one CUDA extend kernel, and compares its results with the float64 reference.

    machine: "gpu" for a GPU, "warp64" for the CPU with simulated warps of 64 lanes, "warp32" with 32 lanes.
    rows: the dispatch table rows of all kernels that are compiled into one library, the tested kernel included.
    """

    backend = "cuda"
    checked = False

    def __init__(self, package: ModuleType, row: Row, machine: str, rows: Sequence[Row]) -> None:
        super().__init__(package, row)
        self.machine, self.rows = machine, rows
        self.library = loaded(package, rows, machine, checked=self.checked)

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel on a call with checked arguments.

        On the CPU, the threads of each warp run in random order, and so do the thread blocks of the grid.
        """
        if self.library.program is None:
            self.launch_on_gpu(call)
            return
        with self.library.program.session(lane_order="random", block_order="random", seed=len(call.seq_lens)):
            launch(self.library.function(self.row), call, self.row, self.library.explain)

    def launch_on_gpu(self, call: ExtendCall) -> None:
        """Copy the call to the GPU, run the kernel there, and copy the results to ``out`` and ``lse`` of ``call``."""
        moved = cases.to(call, torch.device("cuda"))
        launch(self.library.function(self.row), moved, self.row, self.library.explain)
        call.out.copy_(moved.out)
        if call.lse is not None and moved.lse is not None:
            call.lse.copy_(moved.lse)

    def decoder(self, row: Row) -> Harness:
        """The test harness of the decode kernel in ``row``.

        If the row has a PyTorch kernel and a CUDA kernel, the harness runs the PyTorch kernel, which needs no compiler.
        """
        return super().decoder(row) if row.torch else CudaKernel(self.package, row, self.machine, [*self.rows, row])

    def check_table(self, case: ExtendCase) -> None:
        """Check that the package's operator returns bitwise the same results as a direct run of this kernel.

        The order is checked only on the CPU. If this harness runs the kernel on a GPU, the method does nothing.
        """
        if self.machine == "gpu":
            return  # the test's tensors are on the CPU
        self.package.kernels.libraries[False] = self.library
        super().check_table(case)


class CheckedExtend(CudaExtend):
    """A test harness that runs a CUDA extend kernel on the CPU, in a build that checks and counts its memory accesses.

    ``launch`` stores the counters in ``report``, and raises FindingsError if an access was wrong. The checks assume
    that only ``__syncthreads`` orders the memory accesses of different threads, because ``__syncwarp`` does not do so
    on the BI-V100.
    """

    checked = True
    report: Report

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel on a call with checked arguments. Raises FindingsError if a memory access was wrong.

        An access is wrong if, for example, it lies outside of the call's tensors, or if it is part of a race.
        """
        assert self.library.program is not None
        with self.library.program.session(warp_order="syncthreads") as session:

            def workspace(count: int, device: torch.device, stream: int | None) -> torch.Tensor:
                partials = torch.empty(count, dtype=torch.float32)
                session.buffer("partials", partials, initialised=False)
                return partials

            for name, tensor, writable in buffers(call):
                for indices, piece in dense_pieces(tensor):
                    address, size = extent(piece)
                    session.buffer(name + indices, address, size, writable=writable, initialised=True)
            try:
                launch(self.library.function(self.row), call, self.row, self.library.explain, workspace)
            finally:  # a wrong access can stop the launch; report the access rather than the failed launch
                self.report = session.report
                self.report.raise_for_findings()

    def check_counters(
        self, case: ExtendCase, *, page_bytes: int, shared_bytes: int, blocks_per_group: int, reads: int = 1
    ) -> None:
        """Check that the kernel's memory traffic and its shared memory are exactly those that the generator planned.

        The traffic consists of the loads from the caches and block tables, and the bank conflicts in shared memory.

        page_bytes: the size of one page of one KV head, keys and values together, in bytes.
        shared_bytes: the shared memory that one thread block uses, in bytes.
        blocks_per_group: the number of thread blocks that share the query heads of one KV head. Each thread block loads
        the keys and values of the whole KV head.
        reads: the number of query tiles for which each byte of the cache is read. ``reads`` exceeds 1 only if a
        sequence has more query tokens than one query tile holds.
        """
        call = cases.make(case)
        self.run(call)
        kv_heads = call.key_cache.shape[1]
        pages = kv_heads * pages_of_tiles(call, self.row.tile_tokens)
        loads = [self.report.buffers[name].loads for name in ("key_cache", "value_cache")]
        requested = sum(load.bytes for load in loads)
        assert requested == pages * page_bytes * blocks_per_group, "bytes requested of the cache"
        assert 32 * sum(load.sectors_32 for load in loads) == requested, "whole sectors"
        unique = sum(self.report.buffers[name].bytes_read for name in ("key_cache", "value_cache"))
        assert unique * blocks_per_group * reads == requested, "how often each byte of the cache is read"
        table = self.report.buffers["block_tables"].loads.bytes
        assert table == 4 * pages * blocks_per_group, "bytes of the block tables"
        shared = [buffer for buffer in self.report.buffers.values() if buffer.shared]
        passes = sum(buffer.loads.passes + buffer.stores.passes for buffer in shared)
        assert passes == sum(b.loads.passes_ideal + b.stores.passes_ideal for b in shared), "bank conflicts"
        kernel = next(kernel for kernel in self.report.kernels if "partial_kernel" in kernel.name)
        assert (kernel.static_shared, kernel.dynamic_shared) == (shared_bytes, 0), "shared memory"

    def check_empty_work(self, case: ExtendCase, max_seq_len: int) -> None:
        """Check that a larger max_seq_len does not make the kernel access more memory.

        The kernel runs on the case twice. The first run has the smallest max_seq_len that fits all sequences and gives
        at least two partitions, so that there are partial results to merge. The second run has the ``max_seq_len`` that
        is given here. All loads and stores must be the same in both runs, except that each warp loads one sequence
        length and two entries of query_start_loc to find its query tile. Every sequence of the case must have the same
        number of query tiles.
        """
        least = max(*case.seq_lens, self.row.partition_size + 1)  # both calls have a reduction
        tight, roomy = (self._traffic(replace(case, max_seq_len=room)) for room in (least, max_seq_len))
        for name in sorted({*tight, *roomy} - {"seq_lens", "query_start_loc"}):
            for of_roomy, of_tight in zip(roomy[name], tight[name]):
                same = (of_roomy.accesses, of_roomy.bytes) == (of_tight.accesses, of_tight.bytes)
                assert same, f"loads and stores of {name} depend on max_seq_len"
        warps = sum(kernel.threads for kernel in self.report.kernels) // self.report.warp_size
        assert roomy["seq_lens"][0].accesses == warps, "each warp loads its sequence's length once"
        assert roomy["query_start_loc"][0].accesses == 2 * warps, "each warp loads where its sequence begins and ends"

    def _traffic(self, case: ExtendCase) -> dict[str, tuple[Traffic, Traffic]]:
        """Run the kernel on a case. Return a dict from each buffer's name to the traffic of its loads and stores."""
        self.run(cases.make(case))
        return {name: (buffer.loads, buffer.stores) for name, buffer in self.report.buffers.items()}


def pages_of_tiles(call: ExtendCall, tile_tokens: int) -> int:
    """The number of pages that the query tiles of a call load for one KV head.

    A page counts once for each query tile in which a token attends to one of the page's keys.

    tile_tokens: the number of query tokens in a query tile.
    """
    page, count = call.key_cache.shape[3], 0
    starts = call.query_start_loc.tolist()
    for s, length in enumerate(call.seq_lens.tolist()):
        first = length - (starts[s + 1] - starts[s])  # position of the first new token
        for position in range(first, length, tile_tokens):
            begin = 0 if call.sliding_window is None else max(0, position + 1 - call.sliding_window)
            count += -(-min(position + tile_tokens, length) // page) - begin // page
    return count


def buffers(call: ExtendCall) -> list[tuple[str, torch.Tensor, bool]]:
    """All tensors of a call, each as a tuple (name, tensor, whether the kernel writes to the tensor)."""
    named = {**call._asdict(), **{f"tensors[{place}]": tensor for place, tensor in enumerate(call.tensors)}}
    return [(name, value, name in ("out", "lse")) for name, value in named.items() if isinstance(value, torch.Tensor)]
