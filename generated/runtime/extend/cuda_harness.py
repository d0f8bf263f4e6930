"""Test harnesses that run CUDA extend kernels on a GPU, or on the CPU with the CUDA emulator in ``runtime.simt``.

On the CPU, a test can run a checked build of a kernel, which checks and counts each memory access.
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
    """A test harness that runs one CUDA extend kernel, and compares the results with the float64 reference.

    machine: "gpu" for a GPU, "warp64" for the CPU with emulated warps of 64 lanes, "warp32" for the CPU with emulated
    warps of 32 lanes.
    rows: the dispatch-table rows of all kernels to compile into one library, the tested kernel included.
    """

    backend = "cuda"
    checked = False

    def __init__(self, package: ModuleType, row: Row, machine: str, rows: Sequence[Row]) -> None:
        super().__init__(package, row)
        self.machine, self.rows = machine, rows
        self.library = loaded(package, rows, machine, checked=self.checked)

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel on a call with checked arguments.

        On the CPU, the emulator runs the threads of each warp, and the thread blocks of the grid, in random order.
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
        """Return a test harness for the decode kernel that the dispatch-table row ``row`` describes.

        The harness runs the PyTorch kernel of ``row`` if there is one, because a PyTorch kernel needs no compiler.
        """
        return super().decoder(row) if row.torch else CudaKernel(self.package, row, self.machine, [*self.rows, row])

    def check_table(self, case: ExtendCase) -> None:
        """Check that the package's operator returns bitwise the same results as a direct run of this kernel on the CPU.

        The method does nothing if this harness runs the kernel on a GPU.
        """
        if self.machine == "gpu":
            return  # the test's tensors are on the CPU
        self.package.kernels.libraries[False] = self.library
        super().check_table(case)


class CheckedExtend(CudaExtend):
    """A test harness that runs a CUDA extend kernel on the CPU, in a build that checks and counts its memory accesses.

    ``launch`` stores the counters of memory accesses in ``report``, and raises FindingsError if an access was wrong.
    The checks assume that only ``__syncthreads`` orders the memory accesses of different threads, because
    ``__syncwarp`` does not order them on the BI-V100 GPU.
    """

    checked = True
    report: Report

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel on a call with checked arguments. Raises FindingsError if a memory access was wrong.

        A memory access is wrong if, for example, it is outside of the call's tensors or part of a race between threads.
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
        """Check that the kernel loads as many bytes, and uses as much shared memory, as the test expects.

        The check counts the bytes that the kernel loads from the caches and from the block tables. The kernel's
        accesses to shared memory must have no bank conflicts.

        page_bytes: the number of bytes in one page of one KV head, for keys and values together.
        shared_bytes: the number of bytes of shared memory that one thread block uses.
        blocks_per_group: the number of thread blocks among which the kernel divides the query heads of one KV head. All
        thread blocks that share a KV head load the same keys and values.
        reads: the number of query tiles for which the kernel reads each byte of the caches. A query tile is the set of
        query tokens that one thread block processes. ``reads`` is over 1 only if a sequence has more query tokens than
        one query tile holds.
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
        """Check that a larger ``max_seq_len`` does not make the kernel access more memory.

        The method runs the kernel twice on the case: first with the smallest possible ``max_seq_len``, then with the
        argument ``max_seq_len``. The smallest possible ``max_seq_len`` is the least number that fits all sequences and
        gives two partitions. Both runs must make the same numbers of loads and stores, apart from loads of ``seq_lens``
        and ``query_start_loc``. In the second run, each warp must load ``seq_lens`` once and ``query_start_loc`` twice.

        case: the test case, in which all sequences must have the same number of query tiles. A query tile is the set of
        query tokens that one thread block processes.
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
    """Return the number of pages that the query tiles of a call load for one KV head.

    A query tile is a set of consecutive query tokens of one sequence that a thread block processes together. A page
    counts once for each query tile in which a token attends to one of the page's keys.

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
    """Return a tuple (name, tensor, whether the kernel writes to the tensor) for each tensor of a call."""
    named = {**call._asdict(), **{f"tensors[{place}]": tensor for place, tensor in enumerate(call.tensors)}}
    return [(name, value, name in ("out", "lse")) for name, value in named.items() if isinstance(value, torch.Tensor)]
