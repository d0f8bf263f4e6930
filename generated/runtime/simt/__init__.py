"""Runs unmodified CUDA kernels on the CPU, with 64 or 32 lanes per warp, and checks and counts their memory accesses.

The function `build` compiles CUDA sources into a shared library, either as a fast build or as a checked build. A fast
build does not check memory accesses. A checked build is slower, and reports races, accesses outside all buffers,
misaligned accesses, and reads of memory that was never written. A checked build also counts the bytes, memory sectors
and bank conflicts of the accesses, for each buffer and each source line. Fast and checked builds report barriers and
shuffles that some threads do not reach. If a kernel crashes, its launch returns an error, and the process continues.
The class `Finding` describes one reported fault.

The following example runs a kernel in a checked build and prints the counters of its memory accesses:

    from pav2gen.runtime import simt

    program = simt.build(["scale.cu"], warp_size=64, checked=True)
    with program.session(lane_order="random", seed=1) as run:
        run.buffer("input", x, writable=False)
        run.buffer("output", y, initialised=False)
        program.fn("launch_scale")(x.data_ptr(), y.data_ptr(), n)
    run.report.raise_for_findings()
    print(run.report.table())

The command `python -m pav2gen.runtime.simt program.cu` compiles and runs a complete CUDA program. The program has a
`main` function and launches its kernels with `<<<>>>`.
"""

from .build import CompileError, build, compile_commands, note_library, run_command, run_plan
from .cache import CacheError, Digests, is_current, own_folder
from .cli import main
from .policy import Policy
from .program import Program, Session, attach
from .report import Buffer, Finding, FindingsError, Kernel, Line, Place, Report, Totals, Traffic
from .symbols import Location
from .toolchain import Command, Plan, ToolchainError, find_compiler

__all__ = [
    "Buffer",
    "CacheError",
    "Command",
    "CompileError",
    "Digests",
    "Finding",
    "FindingsError",
    "Kernel",
    "Line",
    "Location",
    "Place",
    "Plan",
    "Policy",
    "Program",
    "Report",
    "Session",
    "ToolchainError",
    "Totals",
    "Traffic",
    "attach",
    "build",
    "compile_commands",
    "find_compiler",
    "is_current",
    "main",
    "note_library",
    "own_folder",
    "run_command",
    "run_plan",
]
