"""What the PyTorch extend kernels must show on a CPU: ratios of one run, and what a call costs beside time.

    python benches/extend.py
    python benches/extend.py --dtype float16 --rounds 9 --only drafts
    python benches/extend.py --processor-time

24 query and 4 KV heads of 256, pages of 16. Times are medians of interleaved rounds of whole calls. A round in which
other processes took more than a tenth of a core is left out, unless that leaves fewer than three. On a busy machine,
--processor-time gives the processor time of one thread instead. Exits with 1 where a requirement is missed.

* drafts: 1, 4 and 8 query tokens over 32,768 cached tokens, against one decode
* chunk: 2,048 query tokens over 32,768 cached tokens, against torch's attention with an explicit mask
* prompt: 2,048 query tokens over nothing, against torch's causal attention
* mixed: 60 decodes beside a chunk of 512 query tokens, against each alone
* decodes: batches of one query token each, against decode
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, talks on stderr

import torch

from pav2gen.bench.measuring import contestants, extend
from pav2gen.bench.measuring.package import measured
from pav2gen.plan.kernel import Extender
from pav2gen.reading.selection import Selection, load
from pav2gen.runtime.call import Call
from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.extend import cases as extend_cases
from pav2gen.runtime.extend.call import ExtendCall
from pav2gen.runtime.testing import cases

SPEC = """\
schema: 1
name: peers
about: the shape of Qwen3.6-27B, for the bench of extend
target: bi-v100
model: {num_heads: 24, num_kv_heads: 4, max_seq_len: 262144, tensor_parallel: [1]}
axes: {head_size: 256, gqa_ratio: 6, partition_size: 512, dtype: [float16, bfloat16]}
operators: [decode, extend]
backends: [torch]
limits: {workspace_mib: 64}
"""
KV_HEADS, CONTEXT, CHUNK, WORKSPACE_MIB = 4, 32_768, 2048, 64
#: Query tokens -> how many times the time of one decode they may take.
DRAFTS = {1: 1.15, 4: 1.7, 8: 2.3}
#: A chunk, and a prompt, in times of torch's attention.
AGAINST_MASKED, AGAINST_CAUSAL = 1.3, 1.3
#: A mixed batch, in times of its decodes and its chunk alone. Decodes by extend, in times of decode.
MIXED, DECODES = 1.1, 1.15
#: A round in which others took this share of a core is left out.
BUSY = 0.1


class Verdict(NamedTuple):
    """A requirement and what was found."""

    what: str
    found: str
    kept: bool


class Kernels:
    """The decode and the extend kernel of a dtype, with the plan of the latter."""

    def __init__(self, chosen: Selection, package: ModuleType, dtype: str) -> None:
        self.package, self.dtype = package, dtype
        self.plan = next(each.p for each in chosen.built if isinstance(each, Extender) and each.v.dtype == dtype)
        rows: Sequence[Row] = [row for row in package.kernels.rows if row.key.dtype == dtype]
        self.decoder = next(row for row in rows if row.operator == "decode")
        self.extender = next(row for row in rows if row.operator == "extend")
        self.module: Any = importlib.import_module(f"{package.__name__}.{self.extender.torch}")

    def call(self, new: Sequence[int], old: Sequence[int]) -> ExtendCall:
        """An extend call of query tokens over cached tokens, with its pages in random order."""
        lengths = tuple(a + b for a, b in zip(new, old, strict=True))
        case = extend_cases.ExtendCase(
            self.extender.key,
            extend_cases.ONE_PARTITION,
            lengths,
            kv_heads=KV_HEADS,
            shared_blocks=sum(-(-length // 16) for length in lengths),
            query_lens=tuple(new),
        )
        return extend_cases.make(case)._replace(lse=None)

    def decode_call(self, lengths: Sequence[int]) -> Call:
        """A decode call, with its pages in random order."""
        pages = sum(-(-length // 16) for length in lengths)
        case = cases.Case(self.decoder.key, 512, tuple(lengths), kv_heads=KV_HEADS, shared_blocks=pages)
        return cases.make(case)._replace(lse=None)

    def extend(self, call: ExtendCall) -> Callable[[], None]:
        """A function that runs the extend operator."""
        return lambda: extend.operate(self.package, call, self.extender, "torch")

    def decode(self, call: Call) -> Callable[[], None]:
        """A function that runs the decode operator."""
        return lambda: contestants.operate(self.package, call, self.decoder, "torch")


def busy_seconds() -> float:
    """The CPU time of all processes of the machine since it started, in seconds."""
    fields = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, soft, *_ = map(int, fields)
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def race(runs: Mapping[str, Callable[[], None]], rounds: int) -> tuple[dict[str, float], str]:
    """The median milliseconds of each of ``runs``, and how many rounds were quiet. Each round has a new order."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    order, generator = list(runs), random.Random(0)
    samples: list[tuple[float, dict[str, float]]] = []
    for number in range(rounds + 1):
        generator.shuffle(order)
        took, others, own, start = {}, busy_seconds(), time.process_time(), time.perf_counter()
        for name in order:
            begin = clock()
            runs[name]()
            took[name] = (clock() - begin) * 1e3
        elapsed = time.perf_counter() - start
        foreign = busy_seconds() - others - (time.process_time() - own)
        if number:  # the first round warms up
            samples.append((foreign / elapsed, took))
    quiet = [took for share, took in samples if share <= BUSY]
    used = quiet if len(quiet) >= 3 else [took for _, took in samples]
    return {name: statistics.median(took[name] for took in used) for name in runs}, f"{len(quiet)}/{rounds} quiet"


def within(what: str, took: float, reference: float, limit: float, note: str) -> Verdict:
    """Whether ``took`` is at most ``limit`` times ``reference``, both in milliseconds."""
    ratio = took / reference
    return Verdict(f"{what} <= {limit} x", f"{ratio:.2f}  ({took:.1f} / {reference:.1f} ms, {note})", ratio <= limit)


def costs(kernels: Kernels, name: str, call: ExtendCall) -> Iterator[Verdict]:
    """Workspace within the spec's limit, and calls as the plan counts them."""
    probe, memory, rows = (
        importlib.import_module(f"{kernels.package.__name__}.runtime.{part}")
        for part in ("testing.probe", "workspace", "extend.rows")
    )

    def bare() -> None:
        kernels.module.paged_attention_extend(call)

    peak = probe.peak_bytes(bare) / (1 << 20)
    memory.forget()
    yield Verdict(f"{name}: workspace <= {WORKSPACE_MIB} MiB", f"{peak:.1f}", peak <= WORKSPACE_MIB)
    groups = rows.groups_of(call, kernels.module.CPU, kernels.plan.torch.shape(KV_HEADS))
    planned = kernels.plan.torch.calls_of(groups, KV_HEADS)
    counted = sum(probe.count_calls(bare).values())
    yield Verdict(f"{name}: calls = {planned}", str(counted), counted == planned)


def right(kernels: Kernels, name: str, call: ExtendCall, peer: Callable[[ExtendCall], None]) -> Iterator[Verdict]:
    """The result against a peer's, as a relative error."""
    kernels.extend(call)()
    own = call.out.float()
    peer(call)
    error = float((own - call.out.float()).norm() / call.out.float().norm())
    limit = 2e-3 if kernels.dtype == "float16" else 1e-2
    yield Verdict(f"{name}: differs from torch's by <= {limit}", f"{error:.1e}", error <= limit)


def drafts(kernels: Kernels, rounds: int) -> Iterator[Verdict]:
    """Few query tokens over a long context, against one decode."""
    calls = {new: kernels.call([new], [CONTEXT]) for new in DRAFTS}
    runs = {f"q{new}": kernels.extend(call) for new, call in calls.items()}
    times, note = race({"decode": kernels.decode(kernels.decode_call([CONTEXT])), **runs}, 3 * rounds)
    for new, limit in DRAFTS.items():
        yield within(f"{new} query tokens over {CONTEXT}, in decodes", times[f"q{new}"], times["decode"], limit, note)
    yield from right(kernels, "8 query tokens", calls[8], extend.sdpa)
    yield from costs(kernels, "8 query tokens", calls[8])


def chunk(kernels: Kernels, rounds: int) -> Iterator[Verdict]:
    """A chunk of a prompt over a long context, against torch's attention with a mask."""
    call = kernels.call([CHUNK], [CONTEXT])
    times, note = race({"own": kernels.extend(call), "sdpa": lambda: extend.sdpa(call)}, rounds)
    yield within(f"{CHUNK} over {CONTEXT}, in masked SDPA", times["own"], times["sdpa"], AGAINST_MASKED, note)
    yield from right(kernels, "chunk", call, extend.sdpa)
    yield from costs(kernels, "chunk", call)


def prompt(kernels: Kernels, rounds: int) -> Iterator[Verdict]:
    """A prompt with nothing before it, against torch's causal attention."""
    call = kernels.call([CHUNK], [0])
    runs = {"own": kernels.extend(call), "sdpa": lambda: extend.sdpa_causal(call)}
    times, note = race(runs, 3 * rounds)
    yield within(f"{CHUNK} over nothing, in causal SDPA", times["own"], times["sdpa"], AGAINST_CAUSAL, note)
    yield from right(kernels, "prompt", call, extend.sdpa_causal)
    yield from costs(kernels, "prompt", call)


def mixed(kernels: Kernels, rounds: int) -> Iterator[Verdict]:
    """Decodes beside a chunk in one call, against each alone."""
    both = kernels.call([1] * 60 + [512], [1000] * 61)
    runs = {
        "both": kernels.extend(both),
        "decodes": kernels.extend(kernels.call([1] * 60, [1000] * 60)),
        "chunk": kernels.extend(kernels.call([512], [1000])),
    }
    times, note = race(runs, 3 * rounds)
    yield within("60 decodes and 512 tokens", times["both"], times["decodes"] + times["chunk"], MIXED, note)
    yield from costs(kernels, "mixed", both)


def decodes(kernels: Kernels, rounds: int) -> Iterator[Verdict]:
    """One query token of each sequence, against the decode operator."""
    for seqs, length in ((8, 1000), (60, 100), (16, 2000)):
        runs = {
            "extend": kernels.extend(kernels.call([1] * seqs, [length - 1] * seqs)),
            "decode": kernels.decode(kernels.decode_call([length] * seqs)),
        }
        times, note = race(runs, 5 * rounds)
        yield within(f"{seqs} x {length}, in decodes", times["extend"], times["decode"], DECODES, note)


PARTS = {"drafts": drafts, "chunk": chunk, "prompt": prompt, "mixed": mixed, "decodes": decodes}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say what was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", action="append", choices=("float16", "bfloat16"), help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=3, help="samples of a chunk; shorter calls take more")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, for a busy machine")
    options = parser.parse_args(arguments)
    if options.processor_time:
        torch.set_num_threads(1)
    kept = True
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        spec = Path(folder, "peers.yaml")
        spec.write_text(SPEC, "utf-8")
        (chosen,) = load([spec])
        package, _ = measured(chosen)
        for dtype in options.dtype or ("float16", "bfloat16"):
            kernels = Kernels(chosen, package, dtype)
            for name in options.only or PARTS:
                print(f"\n{dtype}, {name}")
                for verdict in PARTS[name](kernels, options.rounds):
                    print(f"  {'ok    ' if verdict.kept else 'MISSED'}  {verdict.what}: {verdict.found}", flush=True)
                    kept &= verdict.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
