"""The PyTorch kernels beside vLLM's own C++ kernel for CPUs, in one process.

    pip download --no-deps --no-binary vllm --no-build-isolation vllm==0.6.3   # then unpack the archive
    python benches/against_cpp.py PATH_OF_THE_SOURCES
    python benches/against_cpp.py PATH_OF_THE_SOURCES --dtype bfloat16 --chunk-mib 8 --chunk-mib 4

Compiles ``csrc/cpu/attention.cpp`` of vLLM 0.6.3 with g++ into a temporary folder: about a minute. Needs a processor
with AVX-512. The results of both are compared. Then each problem is timed. Long calls take interleaved rounds, and the
milliseconds are medians. Short calls are measured warm and cold, as short_calls.py says: the warm minimum decides, and
the ratio of the cold medians stands beside it. Exits with 1 where a ratio is missed, and with 2 if the kernel cannot be
compiled or its results differ.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils import cpp_extension

sys.path.insert(0, str(Path(__file__).resolve().parent))
import short_calls
from against_peers import AGAINST_VLLM, SPEC

from pav2gen.bench.measuring.bench import Setup
from pav2gen.bench.measuring.clock import interleave
from pav2gen.bench.measuring.contestants import operate
from pav2gen.bench.measuring.problem import Inputs, Problem, rotation
from pav2gen.reading.selection import load
from pav2gen.runtime.call import Call
from pav2gen.runtime.choice.dispatch_row import MIB, Row

#: Sequences and tokens.
PROBLEMS = ((1, 1000), (8, 1000), (1, 8192), (1, 32_768), (1, 100_000), (8, 8192), (32, 2048))

#: Largest difference of the two results, as a share of the norm. The C++ kernel rounds the partitions' outputs, too.
DIFFERENCE = {"bfloat16": 2e-2, "float32": 1e-4}

#: The operator's declaration, and a name that torch has dropped since vLLM 0.6.3.
WRAPPER = """\
#include <optional>
#include <torch/library.h>
namespace c10 { using std::optional; }
#include "attention.cpp"
TORCH_LIBRARY(pav2_against_cpp, library) { library.def("paged_attention_v2", &paged_attention_v2); }
"""

FLAGS = ("-O3", "-march=native", "-fopenmp", "-std=c++20", "-shared", "-fPIC", "-w")


class Unusable(Exception):
    """The C++ kernel cannot be measured; the message says why."""


def compiled(sources: Path, folder: Path) -> Any:
    """The operator of the C++ kernel, compiled in ``folder``. Raises Unusable."""
    cpu = sources / "csrc" / "cpu"
    if not (cpu / "attention.cpp").is_file():
        raise Unusable(f"{cpu / 'attention.cpp'} is not there; give the folder of unpacked sources of vLLM 0.6.3")
    info = Path("/proc/cpuinfo")
    if not info.is_file() or "avx512f" not in info.read_text(encoding="utf-8"):
        raise Unusable("vLLM's kernel needs a processor with AVX-512")
    wrapper, library = folder / "wrapper.cpp", folder / "against_cpp.so"
    wrapper.write_text(WRAPPER, encoding="utf-8")
    includes = [f"-I{path}" for path in (cpu, *cpp_extension.include_paths())]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = ["g++", *FLAGS, abi, *includes, str(wrapper), "-o", str(library), *libraries, "-lc10", "-ltorch_cpu"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    except FileNotFoundError:
        raise Unusable("g++ is not installed") from None
    if done.returncode:
        raise Unusable("g++ cannot compile vLLM's kernel:\n" + "\n".join(done.stderr.splitlines()[:5]))
    torch.ops.load_library(str(library))
    return torch.ops.pav2_against_cpp.paged_attention_v2


def run_cpp(operator: Any, call: Call) -> None:
    """The C++ kernel on a call."""
    assert call.scratch is not None
    operator(
        *(call.out, *call.scratch, call.query, call.key_cache, call.value_cache, call.key_cache.shape[1], call.scale),
        *(call.block_tables, call.seq_lens, call.key_cache.shape[3], call.max_seq_len, None, "auto", 1.0, 1.0),
        *(0, 0, 0, 64, 0),
    )


def run_ours(package: ModuleType, row: Row, module: ModuleType, chunk: int, call: Call) -> None:
    """Our kernel on a call, with chunks of ``chunk`` bytes; 0 leaves the size as it is built."""
    built = module.CPU
    if chunk:
        module.CPU = built._replace(chunk=chunk)
    try:
        operate(package, call, row, "torch")
    finally:
        module.CPU = built


def difference(contestants: dict[str, Callable[[Call], None]], call: Call) -> float:
    """The largest difference of a contestant's result from that of the C++ kernel, as a share of the norm."""
    results = {}
    for name, run in contestants.items():
        call.out.fill_(float("nan"))
        run(call)
        results[name] = call.out.double()
    truth = results["C++"]
    return max(float((result - truth).norm() / truth.norm()) for result in results.values())


def limit(dtype: str, seq_len: int) -> float:
    """The most that our time may be, in multiples of the C++ kernel's."""
    fitting = [(length, ratio) for (length, name), ratio in AGAINST_VLLM.items() if name == dtype and length <= seq_len]
    return 1 / max(fitting)[1]


class Times(NamedTuple):
    """What is compared of one contestant: milliseconds, and the cold median of a short call."""

    deciding: float
    cold: float | None = None


def timed(
    contestants: dict[str, Callable[[Call], None]], setup: Setup, problem: Problem, inputs: Inputs, rounds: int
) -> dict[str, Times]:
    """Time all contestants: the warm minimum and the cold median of short calls, the median of long ones."""
    if short_calls.is_short(problem):
        found = short_calls.measure(contestants, inputs, setup.cache_bytes)
        return {name: Times(min(each.warm), statistics.median(each.cold)) for name, each in found.items()}
    taken = interleave(contestants, rotation(inputs), setup.device, rounds, 2)
    return {name: Times(each.median) for name, each in taken.items()}


def measure(operator: Any, setup: Setup, row: Row, chunks: Sequence[int], rounds: int) -> bool:
    """Measure all problems of one kernel, and print them; whether all ratios were kept."""
    package, kept = setup.package, True
    module = package.operator.kernels.module(row)
    dtype = row.key.dtype
    for num_seqs, seq_len in PROBLEMS:
        problem = Problem(row.key, 4, num_seqs, seq_len)
        inputs = setup.inputs(problem)
        contestants: dict[str, Callable[[Call], None]] = {"C++": functools.partial(run_cpp, operator)}
        for chunk in chunks:
            name = f"ours, {chunk} MiB" if chunk else "ours"
            contestants[name] = functools.partial(run_ours, package, row, module, chunk * MIB)
        off = difference(contestants, inputs.first)
        if not off <= DIFFERENCE[dtype]:
            raise Unusable(f"{num_seqs} x {seq_len} {dtype}: the results differ by {off:.2g} of the norm")
        times = timed(contestants, setup, problem, inputs, rounds)
        cpp = times.pop("C++")
        most = limit(dtype, seq_len)
        for name, ours in times.items():
            ratio = ours.deciding / cpp.deciding
            kept &= ratio <= most
            cold = f"cold {ours.cold / cpp.cold:.2f}" if ours.cold and cpp.cold else ""
            print(
                f"{dtype:9} {num_seqs:2} x {seq_len:<7,} {cpp.deciding:8.2f} {ours.deciding:8.2f} "
                f"{ratio:6.2f} <= {most:4.2f}  {'ok    ' if ratio <= most else 'MISSED'}  {name}  {cold}".rstrip(),
                flush=True,
            )
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, compare, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path, help="folder of unpacked sources of vLLM 0.6.3")
    parser.add_argument("--dtype", action="append", choices=tuple(DIFFERENCE), help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each contestant")
    parser.add_argument(
        "--chunk-mib", action="append", type=int, help="measure the kernel with chunks of this size; repeatable"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        spec = Path(folder, "peers.yaml")
        spec.write_text(SPEC, "utf-8")
        try:
            operator = compiled(options.sources.resolve(), Path(folder))
            print("dtype     sequences x tokens  C++, ms  ours, ms  ratio")
            kept = True
            for dtype in options.dtype or DIFFERENCE:
                setup = Setup(load([spec], [f"dtype={dtype}"])[0], torch.device("cpu"))
                (row,) = setup.package.operator.table.rows
                kept &= measure(operator, setup, row, options.chunk_mib or [0], options.rounds)
        except Unusable as reason:
            print(f"against_cpp: {reason}", file=sys.stderr)
            return 2
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
