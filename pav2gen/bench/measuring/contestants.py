"""Runs the contestants of a measurement, which are kernels and baselines, and checks their results."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from pav2gen.bench.measuring.baselines import TOLERANCE, NotApplicable, baseline
from pav2gen.bench.measuring.clock import Run
from pav2gen.bench.measuring.float64_reference import sequences, truth
from pav2gen.bench.measuring.machine import peak_bytes
from pav2gen.bench.measuring.problem import Inputs, Problem
from pav2gen.runtime import op
from pav2gen.runtime.call import Call
from pav2gen.runtime.choice.dispatch_row import MIB, Row
from pav2gen.runtime.launch import launch
from pav2gen.runtime.testing import probe
from pav2gen.runtime.testing.oracle import excess


@dataclass(frozen=True)
class Contestant:
    """A generated kernel or a baseline that is measured.

    run: a function that makes the whole call, including the checks of its arguments.
    bare: a function that runs only the kernel, with a new workspace, so that the ATen calls and the memory of the
    kernel can be counted. For a baseline, the same function as ``run``.
    backend, row: the backend and the dispatch row of a kernel. A baseline has the backend "" and the row None.
    """

    name: str
    run: Run
    bare: Run
    backend: str = ""
    row: Row | None = None

    @property
    def is_kernel(self) -> bool:
        """Whether this contestant is a generated kernel, and not a baseline."""
        return self.row is not None


def kernels(package: ModuleType, rows: Iterable[Row], backends: Iterable[str]) -> list[Contestant]:
    """Return a contestant for each row of ``rows`` and each backend of ``backends`` for which the row has a kernel."""
    return [_kernel(package, row, backend) for backend in backends for row in rows if getattr(row, backend)]


def _kernel(package: ModuleType, row: Row, backend: str) -> Contestant:
    def run(call: Call) -> None:
        operate(package, call, row, backend)

    memory = importlib.import_module(f"{package.__name__}.runtime.attention.workspace")

    def bare(call: Call) -> None:
        memory.forget()
        op.launch(package.operator.kernel(row, backend, call.query.is_cuda), call, row.partition_size)
        memory.forget()

    return Contestant(f"{backend} p{row.partition_size}", run, bare, backend, row)


def operate(package: ModuleType, call: Call, row: Row, backend: str) -> None:
    """Call the decode operator of ``package`` with arguments that make it run the kernel of ``row`` for ``backend``.

    Arguments that vLLM's paged_attention_v2 has too are passed by position, as vLLM passes them.
    """
    assert call.scratch is not None
    scratch, sparse = call.scratch, call.sparse
    names = [name for name, _ in row.modification.tensors] if row.modification else []
    package.paged_attention_v2(
        *(call.out, scratch.exp_sums, scratch.max_logits, scratch.tmp_out, call.query),
        *(call.key_cache, call.value_cache, call.key_cache.shape[1], call.scale, call.block_tables, call.seq_lens),
        *(row.key.block_size, call.max_seq_len, call.alibi_slopes, row.key.kv_cache_dtype, call.k_scale, call.v_scale),
        *((sparse.tp_rank, sparse.local_blocks, sparse.vert_stride) if sparse else ()),
        *((sparse.block_size, sparse.head_sliding_step) if sparse else ()),
        softcap=call.softcap,
        sliding_window=call.sliding_window,
        sinks=call.sinks,
        modification=call.modification,
        modification_tensors=dict(zip(names, call.tensors)) if names else None,
        backend=backend,
        partition_size=row.partition_size,
    )


def baselines(problem: Problem, names: Iterable[str]) -> tuple[list[Contestant], dict[str, str]]:
    """Return the baselines among ``names`` that can solve ``problem``.

    Also return a dict from the name of each other baseline to the reason why it cannot solve the problem.
    """
    found, absent = [], {}
    for name in names:
        try:
            run = baseline(name, problem.key)
        except NotApplicable as reason:
            absent[name] = str(reason)
        else:
            found.append(Contestant(name, run, run))
    return found, absent


class Checker:
    """Compares the results of contestants (kernels and baselines) with the float64 result of one problem.

    checked: which sequences are compared with float64, as indices into the batch.
    """

    def __init__(self, problem: Problem, inputs: Inputs) -> None:
        self.checked = sequences(problem.num_seqs)
        self._problem = problem
        self._truth = truth(inputs.small, problem.key.kv_cache_dtype, self.checked, problem.modification)

    def verdict(self, contestant: Contestant, call: Call) -> tuple[float, str]:
        """Run a contestant once. Return its error, and the reason why it must not be timed.

        The reason is empty if the result is right. The error is divided by the allowed error. An exception of any type
        becomes a reason, because a baseline of another project may fail in any way.
        """
        try:
            error = self.error(contestant, call)
        except Exception as reason:
            lines = str(reason).strip().splitlines()
            return float("inf"), f"failed: {lines[0] if lines else type(reason).__name__}"
        return error, "" if error <= 1 else f"wrong: its error is {error:.3g} times the allowed error"

    def error(self, contestant: Contestant, call: Call) -> float:
        """Run a contestant once, and return its error divided by the allowed error.

        The result is right if the returned number is at most 1. The result is wrong if the number is larger, infinite
        or NaN.
        """
        call.out.fill_(float("nan"))
        contestant.run(call)
        out = call.out[self.checked].cpu()
        if contestant.is_kernel:
            return excess(out, self._truth)
        error = (out.double() - self._truth).norm() / self._truth.norm()
        return float(error.nan_to_num(float("inf"))) / TOLERANCE[self._problem.key.dtype]


def launches(contestant: Contestant, call: Call) -> int | None:
    """Return how many launches a call of a contestant makes: its ATen calls that are not views, plus its launches of
    CUDA kernels.

    Returns None for vLLM's operator and for compiled FlexAttention, because torch cannot count their launches.
    """
    if contestant.name in ("vllm", "flex"):
        return None
    counted = sum(probe.count_calls(lambda: contestant.bare(call)).values())
    return counted + (cuda_launches(contestant.row, call) if contestant.row and contestant.backend == "cuda" else 0)


def cuda_launches(row: Row, call: Call) -> int:
    """Return how many launches a call of the CUDA decode kernel of ``row`` makes. Nothing is launched to count them."""
    size, room = row.partition_size, row.workspace_mib * MIB
    return count_launches(lambda entry: launch(entry, call, size, room, str, no_workspace))


def count_launches(prepare: Callable[[Callable[..., int]], object]) -> int:
    """Return how many kernels a compiled CUDA library would launch in one call of the operator.

    prepare: a function that divides a call into parts, and calls an entry function for each part. Its argument is the
    entry function: the C function of a library that launches kernels. ``prepare`` gets an entry function that only
    counts. The entry function of a library launches a kernel for the partitions and, if there are several partitions, a
    second kernel that merges their results.
    """
    counts: list[int] = []

    def entry(args: Any, stream: object) -> int:
        counts.append(1 + (args._obj.partitions > 1))
        return 0

    prepare(entry)
    return sum(counts)


def no_workspace(count: int, device: torch.device, stream: int | None) -> torch.Tensor:
    """Return an empty tensor as the workspace of a call that ``count_launches`` only counts. No kernel uses it."""
    return torch.empty(0)


def workspace_bytes(contestant: Contestant, call: Call, device: torch.device) -> int:
    """Return the largest amount of memory, in bytes, that is allocated at one time during a call of a contestant."""
    return peak_bytes(lambda: contestant.bare(call), device)
