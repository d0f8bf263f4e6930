"""Runs decode kernels on test inputs for the generated tests, and compares the outputs with float64."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from .. import check, op
from ..attention.tiling import Budget
from ..call import BlockSparse, Call
from ..choice.dispatch_row import Row
from ..choice.key import Key
from ..workers import pool, shares
from ..workers.shares import Shares
from . import probe
from .cases import Case, copy_outputs, make
from .oracle import NOISE, Partition, Reference, decode, excess, excesses, reference

#: The block-sparse pattern of test cases by default: two local blocks, every fifth block, sparse blocks of two pages, a
#: shift of one sparse block per head, and tensor-parallel rank 1.
LOCAL_BLOCKS, VERT_STRIDE, SPARSE_PAGES, SLIDING_STEP, TP_RANK = 2, 5, 2, 1, 1


class Harness:
    """Runs one decode kernel on test inputs, and checks the results.

    Each backend (PyTorch or CUDA) has a subclass of this class.

    package: the generated package.
    row: the kernel's row in the dispatch table of the package.
    """

    backend = "torch"

    def __init__(self, package: ModuleType, row: Row) -> None:
        self.package = package
        self.row = row
        self.key: Key = row.key
        self.partition_size = row.partition_size

    def launch(self, call: Call) -> None:
        """Run the kernel on the tensors of ``call``, which the operator's argument checks have accepted.

        The scratch tensors of ``call`` have enough partitions for the longest sequence, or ``call.scratch`` is None.
        """
        raise NotImplementedError

    def case(self, seq_lens: Sequence[int], **options: Any) -> Case:
        """Make a test case for this kernel. ``options`` are fields of ``cases.Case``.

        By default, an fp8 or int8 cache gets scales other than 1, and a block-sparse kernel gets a block-sparse
        pattern.
        """
        if self.key.kv_cache_dtype != "auto":
            options = {"k_scale": 0.3, "v_scale": 0.7, **options}
        if self.key.blocksparse:
            page = self.key.block_size
            pattern = self.pattern(LOCAL_BLOCKS, VERT_STRIDE, SPARSE_PAGES * page, SLIDING_STEP, TP_RANK)
            options = {"sparse": pattern, **options}
        if self.row.modification:
            options = {"modification": self.row.modification, **options}
        return Case(self.key, self.partition_size, tuple(seq_lens), **options)

    def pattern(self, *fields: int) -> BlockSparse:
        """Make a block-sparse pattern. ``fields`` are the fields of ``BlockSparse``, in their order."""
        return BlockSparse(*fields)

    def run(self, call: Call) -> Call:
        """Run the kernel directly, without the dispatch table, on copies of the output tensors in ``call``.

        Returns ``call`` with the copies, which contain the kernel's outputs.
        """
        call = copy_outputs(call)
        found = check.check(call, self.key.kv_cache_dtype)
        assert found == self.key, f"the inputs are of {found}, the kernel is of {self.key}"
        op.launch(self.launch, call, self.partition_size)
        return call

    def truth(self, call: Call) -> Reference:
        """Compute the float64 results for the inputs in ``call``."""
        return reference(call, self.key.kv_cache_dtype, self.partition_size, self.row.modification)

    def check(self, case: Case, captured: bool = False) -> None:
        """Run the kernel on a test case, and compare out, lse and the scratch tensors with float64.

        The allowed error grows with the case's ``score_size``, because large scores have larger errors in float32.

        captured: whether to run the kernel as in the capture of a CUDA graph, where the host must not read GPU values.
        """
        call = make(case)._replace(read_lengths=not captured)
        self.compare(call, 4 * case.score_size if case.score_size > 1 else 0.0, truth_of(case))

    def compare(self, call: Call, largest: float = 0.0, truth: Reference | None = None) -> Call:
        """Run the kernel on ``call``, and compare out, lse and the scratch tensors with float64.

        Returns ``call`` with the outputs of the kernel. The allowed error grows with ``largest``.

        largest: the largest magnitude of the scores.
        truth: the float64 results of the call; None means that this method computes the results.
        """
        truth = truth or self.truth(call)
        done = self.run(call)
        worst = excess(done.out, truth.out, score_noise(largest))
        assert worst <= 1, f"the error of out is {worst:.3g} times the allowed error"
        check_lse(done, truth, largest)
        check_scratch(done, truth, largest)
        return done

    def check_small_scratch(self, case: Case) -> None:
        """Check that the kernel computes the right output without scratch tensors of sufficient size.

        The kernel must leave scratch tensors with too few partitions unchanged.
        """
        call = make(case)
        done = self.run(call)
        assert excess(done.out, self.truth(call).out) <= 1
        assert call.scratch is not None and done.scratch is not None
        for before, after in zip(call.scratch, done.scratch):
            assert torch.equal(before.isnan(), after.isnan()) and before.isnan().all()

    def check_table(self, case: Case) -> None:
        """Check that the generated operator and a direct run of this kernel give bitwise equal out, exp_sums and lse.

        The operator runs once with vLLM's arguments, and once with the arguments that vLLM's fork for the BI-V100 GPU
        passes.
        """
        call = make(case)
        direct = self.run(call)
        mapping = torch.arange(case.kv_heads, dtype=torch.int32).repeat_interleave(self.key.gqa_ratio)
        on_device = call._replace(lse=None, k_scale=torch.tensor([call.k_scale]), v_scale=torch.tensor([call.v_scale]))
        for variation, options in ((call, {}), (on_device, {"num_kv_heads": mapping})):
            done = self.run_by_table(variation, **options)
            assert torch.equal(done.out, direct.out)
            assert done.scratch is not None and direct.scratch is not None
            assert torch.equal(done.scratch.exp_sums, direct.scratch.exp_sums)
            assert done.lse is None or (direct.lse is not None and torch.equal(done.lse, direct.lse))

    def run_by_table(self, call: Call, **options: Any) -> Call:
        """Run the generated operator on the inputs in ``call``, with this kernel's backend and partition size.

        ``options`` are further keyword arguments of the operator.
        """
        call = copy_outputs(call)
        assert call.scratch is not None
        scratch, sparse = call.scratch, call.sparse
        self.package.paged_attention_v2(
            *(call.out, scratch.exp_sums, scratch.max_logits, scratch.tmp_out, call.query),
            *(call.key_cache, call.value_cache, options.pop("num_kv_heads", call.key_cache.shape[1]), call.scale),
            *(call.block_tables, call.seq_lens, self.key.block_size, call.max_seq_len, call.alibi_slopes),
            *(self.key.kv_cache_dtype, call.k_scale, call.v_scale),
            *((sparse.tp_rank, sparse.local_blocks, sparse.vert_stride) if sparse else ()),
            *((sparse.block_size, sparse.head_sliding_step) if sparse else ()),
            **{"softcap": call.softcap, "sliding_window": call.sliding_window, "sinks": call.sinks, "lse": call.lse},
            **{"modification": call.modification, "modification_tensors": self.named_tensors(call)},
            **{"backend": self.backend, "partition_size": self.partition_size, **options},
        )
        return call

    def named_tensors(self, call: Call) -> dict[str, torch.Tensor]:
        """Return a dict from the names of the modification's parameter tensors to the tensors in ``call``."""
        return {name: tensor for (name, _), tensor in zip(getattr(self.row.modification, "tensors", ()), call.tensors)}

    def check_codes(self) -> None:
        """Check that the kernel decodes each finite number that an fp8 or int8 cache can hold, both as a key and as a
        value.
        """
        page, head_size = self.key.block_size, self.key.head_size
        call = make(self.case([-(-256 // page) * page], poison=False))
        codes = torch.arange(256, dtype=torch.uint8).view(call.key_cache.dtype)
        finite = codes[decode(codes, self.key.kv_cache_dtype, 1.0).isfinite()]
        for cache in (call.key_cache, call.value_cache):
            flat = torch.arange(cache.numel()) * 7 % len(finite)
            cache.copy_(finite[flat].view(cache.shape))
        self.compare(call._replace(scale=1e-3 / head_size))

    def check_zero_slopes(self, case: Case) -> None:
        """Check that the kernel gives the right results if all ALiBi slopes are zero."""
        call = make(case)
        assert call.alibi_slopes is not None
        self.compare(call._replace(alibi_slopes=torch.zeros_like(call.alibi_slopes)))


class TorchKernel(Harness):
    """Runs a PyTorch decode kernel on test inputs, and checks the results."""

    def __init__(self, package: ModuleType, row: Row) -> None:
        super().__init__(package, row)
        self.module: Any = importlib.import_module(f"{package.__name__}.{row.torch}")

    def launch(self, call: Call) -> None:
        """Run the kernel on the tensors of ``call``, which the operator's argument checks have accepted."""
        self.module.paged_attention(call)

    def count_calls(self, num_seqs: int, max_seq_len: int, kv_heads: int) -> int:
        """Return the number of ATen calls that the kernel makes for inputs of this size, except calls that return
        views.

        Fails if the kernel reads GPU values on the host.
        """
        case = self.case([1] * num_seqs, max_seq_len=max_seq_len, kv_heads=kv_heads)
        call = make(case)
        captured = call._replace(read_lengths=False, lse=None)
        counts = probe.count_calls(lambda: self.module.paged_attention(captured))
        reads = [name for name in probe.HOST_READS if counts[name]]
        assert not reads, f"the kernel reads device values on the host: {reads}"
        return sum(counts.values())

    def room_for(self, chunk_items: int, rows: int, parts: int, kv_heads: int = 2) -> dict[str, int]:
        """Return the smallest workspace bounds that allow chunks and tiles of the given sizes, as arguments of
        ``with_budget``.

        A tile is a group of partitions whose scores are in memory at the same time. A chunk is a part of a tile whose
        keys or values are in memory at the same time.

        chunk_items: the number of partitions in a chunk, summed over sequences.
        rows: the number of sequences in a tile.
        parts: the number of partitions that a tile has of each sequence.
        """
        cpu: Budget = self.module.CPU
        pages = self.partition_size // self.key.block_size
        tile = rows * (parts * cpu.item(pages, kv_heads) + kv_heads * cpu.row)
        return {"chunk": chunk_items * kv_heads * pages * cpu.chunk_page, "segment": tile}

    def with_budget(self, monkeypatch: Any, chunk: int, segment: int) -> None:
        """Change how much workspace memory the kernel may use on the CPU, until the end of the test.

        chunk: the new bound, in bytes, for keys or values that are in memory at the same time.
        segment: the new bound, in bytes, for scores that are in memory at the same time.
        """
        monkeypatch.setattr(self.module, "CPU", self.module.CPU._replace(chunk=chunk, segment=segment, padding=0))

    def with_workers(self, monkeypatch: Any, count: int, chunk: int, segment: int) -> list[int]:
        """Make ``count`` worker threads share the work of each kernel run on the CPU, until the end of the test.

        Return a list to which each shared run appends the number of its workers.

        chunk, segment: the bounds of each worker's workspace, in bytes, as in ``with_budget``.
        """
        held: Shares = self.module.SHARES
        worker = held.worker._replace(chunk=chunk, segment=segment, padding=0)
        monkeypatch.setattr(self.module, "SHARES", held._replace(worker=worker))
        monkeypatch.setattr(shares, "MEDIUM_BYTES", 0)
        monkeypatch.setattr(shares, "CROWDED_BYTES", 0)
        monkeypatch.setattr(pool, "available", lambda: pool.Offer(count, medium=True))
        run = pool.run
        used: list[int] = []

        def counted(workers: int, *rest: Any) -> None:
            used.append(workers)
            run(workers, *rest)

        monkeypatch.setattr(pool, "run", counted)
        return used


@functools.lru_cache(maxsize=8)
def truth_of(case: Case) -> Reference:
    """Return the float64 results of a test case.

    The results are cached, because consecutive tests often use the same case.
    """
    return reference(make(case), case.key.kv_cache_dtype, case.partition_size, case.modification)


def score_noise(m: Any) -> Any:
    """Return the allowed relative error of a softmax weight exp(score) in float32, for a score of magnitude ``m``."""
    return NOISE + 4e-7 * abs(m)


def check_lse(call: Call, truth: Reference, largest: float = 0.0) -> None:
    """Check that lse is the natural logarithm of the sum of exp(score) over the tokens and the attention sink.

    The allowed error grows with ``largest``, the largest magnitude of the scores.
    """
    if call.lse is None:
        return
    off = (call.lse.double() - truth.lse).abs() > 1e-5 + 4e-7 * truth.lse.abs().clamp_min(largest)
    wrong = torch.where(truth.lse.isinf(), call.lse.double() != truth.lse, off | call.lse.isnan())
    assert not wrong.any(), f"lse is off at {wrong.nonzero().tolist()[:5]}"


def check_scratch(call: Call, truth: Reference, largest: float = 0.0) -> None:
    """Check the softmax state (m, z, o) of each partition that the kernel stored in the scratch tensors.

    max_logits must contain m, exp_sums must contain z, and tmp_out must contain o. ``oracle.Partition`` defines m, z
    and o. For a partition without tokens, m is -inf and z is 0. The allowed error grows with ``largest``, the largest
    magnitude of the scores.
    """
    assert call.scratch is not None
    exp_sums, max_logits, tmp_out = call.scratch
    parts = {(s, h, p): part for s, heads in enumerate(truth.partitions) for h, found in enumerate(heads)
             for p, part in enumerate(found)}  # fmt: skip
    m = torch.full_like(max_logits, -math.inf, dtype=torch.float64)
    z = torch.zeros_like(exp_sums, dtype=torch.float64)
    if parts:
        places = torch.tensor(list(parts)).unbind(1)
        m[places] = torch.tensor([part.m for part in parts.values()], dtype=torch.float64)
        z[places] = torch.tensor([part.z for part in parts.values()], dtype=torch.float64)
    check_tmp_out(tmp_out, {place: part for place, part in parts.items() if part.z}, largest)
    off = ~torch.isclose(max_logits.double(), m, rtol=1e-5, atol=1e-5 + 4e-7 * largest)
    assert not off.any(), f"max_logits is off at {off.nonzero().tolist()[:5]}"
    size = torch.where(m.isinf(), torch.zeros_like(m), m).abs().clamp_min(largest)
    off = (exp_sums.double() - z).abs() > (1e-5 + score_noise(size)) * z
    assert not (off | exp_sums.isnan()).any(), f"exp_sums is off at {off.nonzero().tolist()[:5]}"


def check_tmp_out(tmp_out: torch.Tensor, parts: Mapping[tuple[int, int, int], Partition], largest: float) -> None:
    """Compare the attention output of each partition in tmp_out with float64.

    The allowed error grows with ``largest``, the largest magnitude of the scores.

    parts: maps (sequence, head, partition) to the partition's float64 softmax state.
    """
    if parts:
        found = tmp_out[torch.tensor(list(parts)).unbind(1)]
        sizes = torch.tensor([part.m for part in parts.values()], dtype=torch.float64).abs().clamp_min(largest)
        over = excesses(found, torch.stack([part.o for part in parts.values()]), score_noise(sizes))
        worst = int(over.argmax())
        assert over[worst] <= 1, f"tmp_out{[*parts][worst]} has an error of {over[worst]:.3g} times the allowed error"
