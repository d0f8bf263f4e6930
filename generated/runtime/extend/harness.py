"""Test harnesses for extend kernels: they make inputs, run the kernel, and compare with a float64 reference.

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
    """A test harness that runs one extend kernel, and compares its results with the float64 reference.

    Each backend has a subclass, whose method ``launch`` runs the kernel.

    package: the generated package. row: the kernel's row in the package's dispatch table.
    """

    backend = "torch"

    def __init__(self, package: ModuleType, row: Row) -> None:
        self.package = package
        self.row = row
        self.key: Key = row.key

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel on a call with checked arguments.

        The call has at least one query row and one sequence, and its ``max_query_len`` and ``max_seq_len`` are at least
        1.
        """
        raise NotImplementedError

    def case(self, query_lens: Sequence[int], contexts: Sequence[int], **options: Any) -> ExtendCase:
        """A test case for this kernel.

        query_lens: the number of new tokens of each sequence. contexts: the number of cached tokens before the new
        tokens of each sequence. options: values for other fields of ``cases.ExtendCase``. If the kernel's cache is
        compressed, the default of k_scale is 0.3, and that of v_scale is 0.7.
        """
        if self.key.kv_cache_dtype != "auto":
            options = {"k_scale": 0.3, "v_scale": 0.7, **options}
        seq_lens = tuple(new + cached for new, cached in zip(query_lens, contexts))
        own = {"modification": self.row.modification, "query_lens": tuple(query_lens)}
        own["starts"] = tuple(options.pop("starts", ()))
        return ExtendCase(self.key, ONE_PARTITION, seq_lens, **{**own, **options})

    def run(self, call: ExtendCall) -> ExtendCall:
        """Run this kernel without a look-up in the dispatch table. Return a copy of the call with the results.

        The results are in new tensors ``out`` and ``lse``. The tensors of ``call`` are not changed.
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
        """Run the kernel on a case, and compare out and lse with the float64 reference.

        The tolerance grows with ``case.score_size``, because larger scores have larger float32 errors, and these change
        the softmax weights.

        captured: whether to forbid the kernel's host code to read ``query_start_loc`` and ``seq_lens``, as is the case
        during the capture of a CUDA graph.
        """
        call = make(case)._replace(read_lengths=not captured)
        self.compare(call, 4 * case.score_size if case.score_size > 1 else 0.0, truth_of(case))

    def compare(self, call: ExtendCall, largest: float = 0.0, truth: Reference | None = None) -> ExtendCall:
        """Run the kernel on a call, and compare out and lse with the float64 reference. Return the call with results.

        In rows that the call does not compute, out and lse must keep every bit.

        largest: the magnitude of the largest score, or 0 for scores of ordinary size. The tolerance grows with it.
        truth: the reference's results for this call. If None, they are computed.
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
        """The end of an error message: the index of the first wrong row of out, and its error divided by the tolerance.

        The text is empty if no row is wrong.

        done: the call with the kernel's results. truth: the reference's results. largest: the magnitude of the largest
        score. The tolerance grows with it.
        """
        for row in truth.owned.nonzero().flatten().tolist():
            if (worst := excess(done.out[row], truth.out[row], score_noise(largest))) > 1:
                return f"; the first wrong row is {row}, by {worst:.3g} times"
        return ""

    def check_lse(self, lse: torch.Tensor, truth: torch.Tensor, largest: float) -> None:
        """Compare the kernel's ``lse`` with the reference's ``truth``.

        Both are [rows, heads] float64, and hold the natural logarithm of the sum of exp(score) over keys and sink.

        largest: the magnitude of the largest score. The tolerance grows with it.
        """
        off = (lse - truth).abs() > 1e-5 + 4e-7 * truth.abs().clamp_min(largest)
        wrong = torch.where(truth.isinf(), lse != truth, off | lse.isnan())
        assert not wrong.any(), f"lse is off at {wrong.nonzero().tolist()[:5]} of the rows that sequences own"

    def check_table(self, case: ExtendCase) -> None:
        """Check that the package's operator returns bitwise the same results as a direct run of this kernel.

        The operator chooses the kernel by the dispatch table. The operator is called twice: first with k_scale and
        v_scale as given in the case, then with both scales as tensors and without lse.
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
        """Run the package's operator on a call, with this kernel's backend. Return a copy of the call with results.

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
        """Check that this kernel and the decode kernel with the same key give the same result.

        An element of out may differ by an absolute and a relative error of 1e-6. 16-bit elements may also differ by the
        rounding of both results. If scores are large, their float32 rounding may change an element by 4e-7 of the
        largest element in its row, for each unit of the log-sum-exp.

        case: each of its sequences must have exactly one new token.
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
        """The test harness of the PyTorch decode kernel in ``row``, a row of the dispatch table."""
        return decoding.TorchKernel(self.package, row)

    def check_far_strides(self, case: ExtendCase) -> None:
        """Check the kernel on inputs with strides over 2^31 elements.

        The gaps between the elements take up address space, but no memory. The test is skipped if the system does not
        let a process reserve more address space than there is memory.
        """
        try:
            call = cases.spread(make(case))
        except OSError as error:
            import pytest

            pytest.skip(f"no address space for far strides: {error}")
        self.compare(call)

    def check_codes(self) -> None:
        """Check that the kernel decodes the codes of a compressed cache correctly, in keys and in values.

        All codes that stand for finite numbers are tested.
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
    """A test harness that runs one PyTorch extend kernel, and compares its results with the float64 reference."""

    def __init__(self, package: ModuleType, row: Row) -> None:
        super().__init__(package, row)
        self.module: Any = importlib.import_module(f"{package.__name__}.{row.torch}")

    def launch(self, call: ExtendCall) -> None:
        """Run the kernel on a call with checked arguments."""
        self.module.paged_attention_extend(call)

    def with_budget(self, monkeypatch: Any, **figures: int) -> None:
        """Change the bounds of the kernel's workspace on the CPU until the test ends, and forbid padding.

        monkeypatch: pytest's fixture. figures: the new bounds. The keywords are fields of ``ExtendBudget``.
        """
        monkeypatch.setattr(self.module, "CPU", self.module.CPU._replace(padding=0, row_padding=1, **figures))

    def count_calls(self, case: ExtendCase) -> int:
        """Run the kernel on a case, and return the number of calls of ATen operators. Views are not counted.

        In this run, the kernel's host code may not read ``query_start_loc`` and ``seq_lens``, and the kernel writes no
        lse. Raises AssertionError if the host code reads a value of any tensor.
        """
        call = make(case)._replace(read_lengths=False, lse=None)
        self.module.paged_attention_extend(call)  # fills caches, such as fp8 tables
        counts = probe.count_calls(lambda: self.module.paged_attention_extend(call))
        reads = [name for name in probe.HOST_READS if counts[name]]
        assert not reads, f"the kernel reads device values on the host: {reads}"
        return sum(counts.values())


@functools.lru_cache(maxsize=8)
def truth_of(case: ExtendCase) -> Reference:
    """The results of the float64 reference for a case.

    The values are cached, because several tests use the same case.
    """
    return reference(make(case), case.key.kv_cache_dtype, case.modification)
