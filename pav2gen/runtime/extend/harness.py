"""Test harnesses for extend kernels. A harness makes inputs, runs a kernel, and compares the results with a float64
reference.

The generated tests call the methods of these harnesses.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from ..choice.dispatch_row import Row
from ..choice.key import Key
from ..testing import cases as decode_cases
from ..testing import harness as decoding
from ..testing import probe
from ..testing.harness import score_noise
from ..testing.oracle import decode, excess
from . import cases, check, op
from .call import ExtendCall
from .cases import ONE_PARTITION, ExtendCase, copy_outputs, make
from .oracle import Reference, reference


class ExtendHarness:
    """A test harness that runs one extend kernel, and compares the results with the float64 reference.

    The subclass for each backend has a method ``launch`` that runs the kernel.

    package: the generated package. row: the kernel's row in the package's dispatch table.
    """

    backend = "torch"

    def __init__(self, package: ModuleType, row: Row) -> None:
        self.package = package
        self.row = row
        self.key: Key = row.key

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel on a call with checked arguments.

        The call must have at least one query row and one sequence, and ``max_query_len`` and ``max_seq_len`` of at
        least 1.
        """
        raise NotImplementedError

    def case(self, query_lens: Sequence[int], contexts: Sequence[int], **options: Any) -> ExtendCase:
        """Make a test case for this kernel.

        For a kernel that reads a compressed cache, k_scale defaults to 0.3 and v_scale to 0.7.

        query_lens: the number of new tokens of each sequence. contexts: the number of cached tokens before the new
        tokens of each sequence. options: values for other fields of ``cases.ExtendCase``.
        """
        if self.key.kv_cache_dtype != "auto":
            options = {"k_scale": 0.3, "v_scale": 0.7, **options}
        seq_lens = tuple(new + cached for new, cached in zip(query_lens, contexts))
        own = {"modification": self.row.modification, "query_lens": tuple(query_lens)}
        own["starts"] = tuple(options.pop("starts", ()))
        return ExtendCase(self.key, ONE_PARTITION, seq_lens, **{**own, **options})

    def run(self, call: ExtendCall) -> ExtendCall:
        """Run this kernel without a look-up in the dispatch table. Return a copy of the call with the results.

        The kernel writes the results to new tensors ``out`` and ``lse``, so that the tensors of ``call`` do not change.
        """
        call = copy_outputs(call)
        found = check.check(call, self.key.kv_cache_dtype)
        assert found == self.key, f"the inputs are of {found}, the kernel is of {self.key}"
        op.launch(self.launch, call)
        return call

    def truth(self, call: ExtendCall) -> Reference:
        """Compute the results of a call with the float64 reference."""
        return reference(call, self.key.kv_cache_dtype, self.row.modification)

    def check(self, case: ExtendCase, captured: bool = False) -> None:
        """Run the kernel on a case, and compare ``out`` and ``lse`` with the float64 reference.

        The tolerance grows with ``case.score_size``, the factor by which the case multiplies the attention scores.
        Larger scores have larger float32 errors, and these errors change the softmax weights.

        captured: if True, the kernel's host code must not read the values of ``query_start_loc`` and ``seq_lens``, as
        during the capture of a CUDA graph.
        """
        call = make(case)._replace(read_lengths=not captured)
        self.compare(call, 4 * case.score_size if case.score_size > 1 else 0.0, truth_of(case))

    def compare(self, call: ExtendCall, largest: float = 0.0, truth: Reference | None = None) -> ExtendCall:
        """Run the kernel on a call, and compare ``out`` and ``lse`` with the float64 reference. Return the call with
        the results.

        For query rows that the call does not compute, ``out`` and ``lse`` must keep every bit.

        largest: the magnitude of the largest attention score, or 0 for scores of ordinary size. The tolerance grows
        with ``largest``.
        truth: the results of the reference for this call, or None to compute these results.
        """
        truth = truth or self.truth(call)
        done = self.run(call)
        worst = excess(done.out[truth.owned], truth.out[truth.owned], score_noise(largest))
        assert worst <= 1, (
            f"the error of out is {worst:.3g} times the allowed error{self.worst_row(done, truth, largest)}"
        )
        assert torch.equal(done.out[~truth.owned], call.out[~truth.owned]), "a row that no sequence owns was written"
        if done.lse is not None and call.lse is not None:
            assert torch.equal(done.lse[~truth.owned], call.lse[~truth.owned]), "lse of a row that no sequence owns"
            self.check_lse(done.lse[truth.owned].double(), truth.lse[truth.owned], largest)
        return done

    def worst_row(self, done: ExtendCall, truth: Reference, largest: float) -> str:
        """Return the end of an error message about ``out``: the index of the first wrong query row, and its error.

        The message gives the error as a multiple of the tolerance. The result is an empty string if no query row is
        wrong.

        done: the call with the kernel's results. truth: the results of the reference. largest: the magnitude of the
        largest attention score, with which the tolerance grows.
        """
        for row in truth.owned.nonzero().flatten().tolist():
            if (worst := excess(done.out[row], truth.out[row], score_noise(largest))) > 1:
                return f"; the first wrong row is {row}, by {worst:.3g} times"
        return ""

    def check_lse(self, lse: torch.Tensor, truth: torch.Tensor, largest: float) -> None:
        """Compare the kernel's ``lse`` with ``truth``, the lse of the float64 reference.

        Both tensors are [query rows, heads] float64, and hold the natural logarithm of the sum of exp(score) over all
        keys and the attention sink.

        largest: the magnitude of the largest attention score, with which the tolerance grows.
        """
        off = (lse - truth).abs() > 1e-5 + 4e-7 * truth.abs().clamp_min(largest)
        wrong = torch.where(truth.isinf(), lse != truth, off | lse.isnan())
        assert not wrong.any(), f"lse is off at {wrong.nonzero().tolist()[:5]} of the rows that sequences own"

    def check_table(self, case: ExtendCase) -> None:
        """Check that the package's operator returns bitwise the same results as a direct run of this kernel.

        The operator chooses the kernel from the dispatch table. The method calls the operator twice: first with the
        scales ``k_scale`` and ``v_scale`` of the case, then with both scales as tensors and without ``lse``.
        """
        call = make(case)
        direct = self.run(call)
        on_device = call._replace(lse=None)
        if not isinstance(call.k_scale, torch.Tensor):
            on_device = on_device._replace(k_scale=torch.tensor([call.k_scale]), v_scale=torch.tensor([call.v_scale]))
        for variation in (call, on_device):
            done = self.run_by_table(variation)
            assert torch.equal(done.out, direct.out)
            assert done.lse is None or (direct.lse is not None and torch.equal(done.lse, direct.lse))

    def run_by_table(self, call: ExtendCall, **options: Any) -> ExtendCall:
        """Run the package's operator on a call, with this kernel's backend. Return a copy of the call with the results.

        options: further keyword arguments for the operator.
        """
        call = copy_outputs(call)
        names = getattr(self.row.modification, "tensors", ())
        self.package.paged_attention_extend(
            *(call.out, call.query, call.key_cache, call.value_cache, call.key_cache.shape[1], call.scale),
            *(call.block_tables, call.query_start_loc, call.seq_lens, self.key.block_size),
            *(call.max_query_len, call.max_seq_len, call.alibi_slopes, self.key.kv_cache_dtype),
            *(call.k_scale, call.v_scale),
            **{"softcap": call.softcap, "sliding_window": call.sliding_window, "sinks": call.sinks, "lse": call.lse},
            **{"modification": call.modification},
            **{"modification_tensors": {name: tensor for (name, _), tensor in zip(names, call.tensors)}},
            **{"backend": self.backend, **options},
        )
        return call

    def check_decode(self, case: ExtendCase) -> None:
        """Check that this extend kernel and the decode kernel with the same key in the dispatch table give the same
        results.

        An element of ``out`` may differ by an absolute error of 1e-6, plus a relative error of 1e-6. Elements in 16
        bits may also differ by the rounding errors of both results. Because large scores have large float32 errors, an
        element may differ by a further 4e-7 * abs(lse) * m, where m is the largest magnitude in the output of the same
        token and head.

        case: a test case with exactly one new token in each sequence.
        """
        call = make(case)
        done = self.run(call)
        row = next(row for row in self.package.operator.table.rows if row.key == self.key)
        decoder = self.decoder(row)
        decoded = decoder.run(decode_cases.make(cases.of_decode(case, row.partition_size))._replace(query=call.query))
        rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 0.0}[self.key.dtype]
        assert done.lse is not None and decoded.lse is not None
        ours, theirs = done.out.float(), decoded.out.float()
        noise = 4e-7 * decoded.lse.abs().nan_to_num(posinf=0.0).unsqueeze(-1) * theirs.abs().amax(-1, keepdim=True)
        off = (ours - theirs).abs() > 1e-6 + (1e-6 + 2 * rounding) * theirs.abs() + noise
        assert not (off | ours.isnan()).any(), f"out is off at {off.nonzero().tolist()[:5]}"
        assert torch.allclose(done.lse, decoded.lse, rtol=1e-6, atol=1e-5), "lse is off"

    def decoder(self, row: Row) -> decoding.Harness:
        """Return a test harness for the PyTorch decode kernel that the dispatch-table row ``row`` describes."""
        return decoding.TorchKernel(self.package, row)

    def check_far_strides(self, case: ExtendCase) -> None:
        """Check the kernel on inputs with strides over 2^31 elements.

        The gaps between the elements take up address space, but no memory. The method skips the test if the system does
        not let a process reserve more address space than there is memory.
        """
        try:
            call = cases.spread(make(case))
        except OSError as error:
            import pytest

            pytest.skip(f"no address space for far strides: {error}")
        self.compare(call)

    def check_codes(self) -> None:
        """Check that the kernel decodes all 8-bit numbers of a compressed cache correctly, in keys and in values.

        The method does not test infinity and NaN.
        """
        page, head_size = self.key.block_size, self.key.head_size
        call = make(self.case([3], [-(-256 // page) * page - 3], poison=False))
        codes = torch.arange(256, dtype=torch.uint8).view(call.key_cache.dtype)
        finite = codes[decode(codes, self.key.kv_cache_dtype, 1.0).isfinite()]
        for cache in (call.key_cache, call.value_cache):
            flat = torch.arange(cache.numel()) * 7 % len(finite)
            cache.copy_(finite[flat].view(cache.shape))
        self.compare(call._replace(scale=1e-3 / head_size))


class TorchExtend(ExtendHarness):
    """A test harness that runs one PyTorch extend kernel, and compares the results with the float64 reference."""

    def __init__(self, package: ModuleType, row: Row) -> None:
        super().__init__(package, row)
        self.module: Any = importlib.import_module(f"{package.__name__}.{row.torch}")

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel on a call with checked arguments."""
        self.module.paged_attention_extend(call)

    def with_budget(self, monkeypatch: Any, **figures: int) -> None:
        """Change the bounds of the kernel's workspace on the CPU until the test ends, and forbid padding.

        monkeypatch: the pytest fixture of this name. figures: the new bounds, with the field names of ``ExtendBudget``
        as keywords.
        """
        monkeypatch.setattr(self.module, "CPU", self.module.CPU._replace(padding=0, row_padding=1, **figures))

    def count_calls(self, case: ExtendCase) -> int:
        """Run the kernel on a case, and return the number of calls of ATen operators, without those that return views.

        The method runs the case without ``lse`` and with ``read_lengths`` set to False. Raises AssertionError if the
        kernel's host code reads the value of any tensor.
        """
        call = make(case)._replace(read_lengths=False, lse=None)
        self.module.paged_attention_extend(call)  # fills caches, such as fp8 tables
        counts = probe.count_calls(lambda: self.module.paged_attention_extend(call))
        reads = [name for name in probe.HOST_READS if counts[name]]
        assert not reads, f"the kernel reads device values on the host: {reads}"
        return sum(counts.values())


@functools.lru_cache(maxsize=8)
def truth_of(case: ExtendCase) -> Reference:
    """Return the results of the float64 reference for a case. The results are cached, because several tests use the
    same case.
    """
    return reference(make(case), case.key.kv_cache_dtype, case.modification)
