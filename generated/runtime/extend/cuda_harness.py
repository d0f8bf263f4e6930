"""Harnesses that test CUDA extend kernels: on a GPU if there is one, else on the CPU, which counts memory accesses."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from ..select import Row
from ..simt import Report
from ..testing.cases import dense_pieces
from ..testing.cuda_harness import CudaKernel, extent, loaded
from ..testing.harness import Harness
from . import cases
from .call import ExtendCall
from .cases import ExtendCase
from .harness import ExtendHarness
from .launch import launch


class CudaExtend(ExtendHarness):
    """A CUDA extend kernel that is tested on one machine."""

    backend = "cuda"
    checked = False

    def __init__(self, package: ModuleType, row: Row, machine: str, rows: Sequence[Row]) -> None:
        super().__init__(package, row)
        self.machine, self.rows = machine, rows
        self.library = loaded(package, rows, machine, checked=self.checked)

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel on a checked call. On the CPU, lanes and blocks run in a random order."""
        if self.library.program is None:
            self.launch_on_gpu(call)
            return
        with self.library.program.session(lane_order="random", block_order="random", seed=len(call.seq_lens)):
            launch(self.library.function(self.row), call, self.row, self.library.explain)

    def launch_on_gpu(self, call: ExtendCall) -> None:
        """Run the kernel on a copy of the call on the GPU, and bring its outputs back."""
        moved = cases.to(call, torch.device("cuda"))
        launch(self.library.function(self.row), moved, self.row, self.library.explain)
        call.out.copy_(moved.out)
        if call.lse is not None and moved.lse is not None:
            call.lse.copy_(moved.lse)

    def decoder(self, row: Row) -> Harness:
        """The harness of a row's decode kernel: in PyTorch if possible, because that needs no compiler."""
        return super().decoder(row) if row.torch else CudaKernel(self.package, row, self.machine, [*self.rows, row])

    def check_table(self, case: ExtendCase) -> None:
        """Check that the package's operator runs this kernel after its library is loaded."""
        if self.machine == "gpu":
            return  # the operator takes tensors of the GPU
        self.package.kernels.libraries[False] = self.library
        super().check_table(case)


class CheckedExtend(CudaExtend):
    """A CUDA kernel in a checked build. A launch raises if it has findings, and stores its counters in ``report``.

    Only ``__syncthreads`` counts as a fence, because ``__syncwarp`` is not a fence on the BI-V100.
    """

    checked = True
    report: Report

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel with all its buffers registered. Raises FindingsError for a finding."""
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
            finally:  # a finding can stop the launch; report the finding rather than the failed launch
                self.report = session.report
                self.report.raise_for_findings()


def buffers(call: ExtendCall) -> list[tuple[str, torch.Tensor, bool]]:
    """All tensors of a call: (name, tensor, whether a kernel writes it)."""
    named = {**call._asdict(), **{f"tensors[{place}]": tensor for place, tensor in enumerate(call.tensors)}}
    return [(name, value, name in ("out", "lse")) for name, value in named.items() if isinstance(value, torch.Tensor)]
