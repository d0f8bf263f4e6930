"""Test harnesses for cache writers. A harness makes inputs, runs a writer, and compares each byte of the caches.

The generated tests call the methods of these harnesses.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from ..choice.dispatch_row import Row
from ..choice.key import CacheKey
from ..simt import Report
from ..testing import cases as decode_cases
from ..testing import oracle, probe
from ..testing.cuda_harness import extent, loaded
from ..testing.harness import TorchKernel
from . import check
from .call import Write
from .cases import WriteCase, expected, make, own_caches, quantized, same_bytes
from .launch import launch

#: The scales of K and V in test cases with a compressed cache, by default.
SCALES = (0.3, 0.7)


class WriterHarness:
    """Runs one cache writer on test cases, and checks the results. The subclass for each backend launches the writer.

    package: the generated package.
    row: the writer's row in the dispatch table of the package.
    """

    backend = "torch"

    def __init__(self, package: ModuleType, row: Row) -> None:
        self.package = package
        self.row = row
        self.key: CacheKey = row.key

    def launch(self, write: Write) -> None:
        """Run the writer on a call that has checked arguments and at least one token."""
        raise NotImplementedError

    def case(self, slots: Sequence[int], **options: Any) -> WriteCase:
        """Make a test case for this writer. By default, a compressed cache has the scales ``SCALES``.

        slots: the elements of ``slot_mapping``. options: values for other fields of ``cases.WriteCase``.
        """
        if self.key.kv_cache_dtype != "auto":
            options = {"scales": SCALES, **options}
        return WriteCase(self.key, tuple(slots), **options)

    def case_of_int32(self, slots: Sequence[int], **options: Any) -> WriteCase:
        """Make a test case with an int32 slot_mapping, as vLLM's fork for the BI-V100 GPU passes it."""
        return self.case(slots, slot_dtype=torch.int32, **options)

    def run(self, write: Write) -> Write:
        """Run the writer without a look-up in the dispatch table, on copies of the caches.

        Returns ``write`` with the copies of the caches after the run.
        """
        write = own_caches(write)
        found = check.check(write, self.key.kv_cache_dtype)
        assert found == self.key, f"the inputs are of {found}, the writer is of {self.key}"
        self.launch(write)
        return write

    def check(self, case: WriteCase) -> Write:
        """Run the writer on a case, and compare every byte of both caches with the expected content.

        Returns the call with the caches after the run.
        """
        write = make(case)
        done, truth = self.run(write), expected(write, self.key.kv_cache_dtype)
        for name in ("key_cache", "value_cache"):
            found, wanted = (self.without_nan(getattr(each, name)) for each in (done, truth))
            assert torch.equal(found, wanted), f"{name} is wrong in {int((found != wanted).sum())} elements"
        return done

    def without_nan(self, cache: torch.Tensor) -> torch.Tensor:
        """Return all bytes of a cache as uint8, including the gaps between its blocks.

        In an fp8 cache, the function replaces every encoding of NaN by the same byte.
        """
        whole = torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage())
        values = [oracle.fp8_value(code, self.key.kv_cache_dtype) for code in range(256)] if self.is_fp8 else []
        nan = torch.tensor([code for code, value in enumerate(values) if value != value], dtype=torch.uint8)
        return torch.where(torch.isin(whole, nan), 0x7F, whole) if self.is_fp8 else whole

    @property
    def is_fp8(self) -> bool:
        """Whether the elements of the cache are fp8."""
        return self.key.kv_cache_dtype.startswith("fp8")

    def check_table(self, case: WriteCase) -> None:
        """Check that the package's operator writes the same bytes as a direct run of this writer.

        The method calls the operator as vLLM does: once with the scales as floats, and once with the scales as tensors.
        """
        write = make(case)
        direct = self.run(write)
        scales = {name: torch.as_tensor(getattr(write, name)).float() for name in ("k_scale", "v_scale")}
        for variation in (write, write._replace(**scales)):
            done = own_caches(variation)
            self.package.reshape_and_cache(
                *(done.key, done.value, done.key_cache, done.value_cache, done.slot_mapping),
                *(self.key.kv_cache_dtype, done.k_scale, done.v_scale),
                backend=self.backend,
            )
            assert same_bytes(done.key_cache, direct.key_cache) and same_bytes(done.value_cache, direct.value_cache)

    def check_round_trip(self, lengths: Sequence[int]) -> None:
        """Check that the caches hold exactly the expected numbers after the writer has written whole sequences.

        Also check that a decode kernel of the package computes the right attention from these caches.

        lengths: sequence lengths in tokens.
        """
        row = next(row for row in self.package.operator.table.rows if self.is_read_by(row))
        kernel = TorchKernel(self.package, row)
        call = decode_cases.make(kernel.case(lengths))
        page, kv_heads = row.key.block_size, call.key_cache.shape[1]
        slots = [
            int(call.block_tables[s, token // page]) * page + token % page
            for s, length in enumerate(lengths)
            for token in range(length)
        ]
        scales = (float(call.k_scale), float(call.v_scale))
        case = self.case(slots, kv_heads=kv_heads, scales=scales)
        write = make(case)._replace(key_cache=call.key_cache, value_cache=call.value_cache)
        done = self.run(write)
        call = call._replace(key_cache=done.key_cache, value_cache=done.value_cache)
        for s, rows in enumerate(torch.arange(len(slots)).split(list(lengths))):
            read = oracle.gather(call, s, self.key.kv_cache_dtype)
            for each, written, scale in zip(read, (write.key, write.value), scales):
                codes = quantized(written[rows], scale, self.key.kv_cache_dtype)
                assert torch.equal(each.transpose(0, 1), oracle.decode(codes, self.key.kv_cache_dtype, scale))
        kernel.compare(call)

    def is_read_by(self, row: Row) -> bool:
        """Whether the dispatch-table row ``row`` has a PyTorch kernel that can read the caches of this writer."""
        same = all(getattr(row.key, axis) == value for axis, value in self.key._asdict().items())
        return same and bool(row.torch)


class TorchWriter(WriterHarness):
    """Runs a PyTorch cache writer on test cases, and checks the results."""

    def __init__(self, package: ModuleType, row: Row) -> None:
        super().__init__(package, row)
        self.module: Any = importlib.import_module(f"{package.__name__}.{row.torch}")

    def launch(self, write: Write) -> None:
        """Run the writer on a call with checked arguments."""
        self.module.reshape_and_cache(write)

    def in_chunks_of(self, tokens: int, monkeypatch: Any, kv_heads: int = 2) -> None:
        """Limit the writer's workspace on the CPU until the test ends, so that the writer processes ``tokens`` tokens
        at a time.
        """
        room = (tokens + 1) * (self.module.TOKEN_BYTES + kv_heads * self.module.HEAD_BYTES)
        monkeypatch.setattr(self.module, "CPU_BYTES", room)

    def count_calls(self, case: WriteCase) -> int:
        """Return the number of ATen calls that the writer makes for a case, without the calls that return views.

        Raises AssertionError if the writer copies values from the device to the host.
        """
        write = make(case)
        counts = probe.count_calls(lambda: self.module.reshape_and_cache(write))
        reads = [name for name in probe.HOST_READS if counts[name]]
        assert not reads, f"the writer reads device values on the host: {reads}"
        return sum(counts.values())

    def check_workspace(self, case: WriteCase) -> None:
        """Check that the writer never holds more than ``CPU_BYTES`` bytes of temporary memory during a call on the CPU.

        The constant ``CPU_BYTES`` is in the writer's module.
        """
        write = make(case)
        held = probe.peak_bytes(lambda: self.module.reshape_and_cache(write))
        assert held <= self.module.CPU_BYTES, f"the writer holds {held} bytes"


class CudaWriter(WriterHarness):
    """Runs a CUDA cache writer on a GPU, or on the CPU with an emulated warp size, and checks the results."""

    backend = "cuda"
    checked = False

    def __init__(self, package: ModuleType, row: Row, machine: str, rows: Sequence[Row]) -> None:
        super().__init__(package, row)
        self.machine = machine
        self.library = loaded(package, rows, machine, checked=self.checked)

    def launch(self, write: Write) -> None:
        """Run the writer on a call with checked arguments.

        On the CPU, the emulator runs the threads of each warp, and the thread blocks of the grid, in random order.
        """
        if self.library.program is None:
            self.launch_on_gpu(write)
            return
        with self.library.program.session(lane_order="random", block_order="random", seed=len(write.slot_mapping)):
            launch(self.library.function(self.row), write, self.library.explain)

    def launch_on_gpu(self, write: Write) -> None:
        """Copy the call to the GPU, and run the writer there. Then copy the caches back, including the gaps between
        blocks.
        """
        moved = Write(*(value.cuda() if isinstance(value, torch.Tensor) else value for value in write))  # type: ignore[arg-type]
        caches = {}
        for name in ("key_cache", "value_cache"):
            cache = getattr(write, name)
            whole = torch.empty(0, dtype=cache.dtype).set_(cache.untyped_storage()).cuda()
            caches[name] = whole.as_strided(cache.shape, cache.stride(), cache.storage_offset())
        launch(self.library.function(self.row), moved._replace(**caches), self.library.explain)
        for name, cache in caches.items():
            getattr(write, name).untyped_storage().copy_(cache.untyped_storage())

    def check_table(self, case: WriteCase) -> None:
        """Check that the package's operator writes the same bytes as a direct run of this CUDA writer on the CPU.

        The method does nothing if this harness runs the writer on a GPU.
        """
        if self.machine == "gpu":
            return  # the operator takes tensors of the GPU
        self.package.kernels.libraries[False] = self.library
        super().check_table(case)


class CheckedWriter(CudaWriter):
    """Runs a CUDA cache writer on the CPU, in a build that checks and counts all memory accesses.

    ``launch`` stores the counters of memory accesses in ``report``, and raises FindingsError if an access was wrong.
    """

    checked = True
    report: Report

    def launch(self, write: Write) -> None:
        """Run the writer on a call with checked arguments. Raises FindingsError if a memory access was wrong.

        Before the run, the method tells the emulator the address and size of each tensor of the call.
        """
        assert self.library.program is not None
        with self.library.program.session(warp_order="syncthreads") as session:
            for name, tensor in write._asdict().items():
                if isinstance(tensor, torch.Tensor):
                    address, size = extent(tensor)
                    writable = name.endswith("_cache")
                    session.buffer(name, address, size, writable=writable, initialised=not writable)
            try:
                launch(self.library.function(self.row), write, self.library.explain)
            finally:  # a finding can stop a launch, which then fails
                self.report = session.report
                self.report.raise_for_findings()

    def check_counters(self, pages: int, row_bytes: int, shared_bytes: int) -> None:
        """Write a prompt of ``pages`` whole pages, and check the memory accesses and the size of shared memory.

        The writer must read each byte of ``key`` and ``value`` once, and write whole 32-byte sectors of the cache.

        row_bytes: the number of bytes that the key (or the value) of one token and KV head takes in the cache.
        shared_bytes: the number of bytes of shared memory of each thread block.
        """
        case = self.case(range(pages * self.key.block_size), blocks=pages)
        write = self.run(make(case))
        buffers, rows = self.report.buffers, len(case.slots) * case.kv_heads
        for name in ("key", "value"):
            loads = buffers[name].loads
            assert loads.bytes == rows * self.key.head_size * write.key.element_size(), f"bytes of {name} requested"
            assert buffers[name].bytes_read == loads.bytes, f"each byte of {name} once"
            stores = buffers[f"{name}_cache"].stores
            assert stores.bytes == rows * row_bytes, f"bytes of {name}_cache written"
            assert 32 * stores.sectors_32 == stores.bytes, f"whole sectors of {name}_cache"
        (kernel,) = self.report.kernels
        assert (kernel.static_shared, kernel.dynamic_shared) == (shared_bytes, 0), "shared memory"
