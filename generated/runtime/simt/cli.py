"""Compiles a CUDA program with a `main` of its own, runs it under the runtime, prints findings and counters."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .build import CompileError, compile_commands, run_plan
from .policy import CHOICES, Policy
from .report import Report, read_report
from .toolchain import ToolchainError


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run a program.

    :return: its own exit code, or 1 if that is 0 and there are findings; 2 if it does not compile
    """
    args = _parser(prog).parse_args(argv)
    try:
        policy = _policy(args)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        try:
            Path(args.json).open("a").close()
        except OSError as error:
            print(f"{args.json}: cannot be written ({error.strerror})", file=sys.stderr)
            return 2
    try:
        program = _build(args)
    except (CompileError, ToolchainError) as error:
        print(error, file=sys.stderr)
        return 2
    code, report = _run(program, args.arguments, policy)
    if report is None:
        print("the program ended without a report", file=sys.stderr)
        return code or 1
    if args.json:
        Path(args.json).write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n")
    print(report)
    return code or int(bool(report.findings))


def _parser(prog: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog or "simt", description=__doc__)
    add = parser.add_argument
    add("sources", nargs="+", metavar="FILE.cu", help="sources of one program; one of them has main()")
    add("--warp-size", type=int, choices=(32, 64), default=64)
    add("--fast", action="store_true", help="no checks of memory accesses and no counters of them, but at full speed")
    for name, choices in CHOICES.items():
        add(f"--{name.replace('_', '-')}", choices=choices, default=getattr(Policy, name))
    add("--seed", type=int, default=0, help="of random orders")
    add("--lenient-exit", action="store_true", help="threads that have returned are not missed at barriers")
    add("--wrap", action="store_true", help="the overflow of signed integers is no finding")
    add("--time-limit", type=float, default=60, metavar="S", help="seconds for one launch, 0 for no limit (60)")
    add("--stack-bytes", type=int, default=Policy.stack_bytes, metavar="N", help="local memory of a thread")
    add("-I", dest="include", action="append", default=[], metavar="DIR", help="search DIR for headers")
    add("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="define a macro")
    add("--arg", dest="arguments", action="append", default=[], metavar="WORD", help="an argument for the program")
    add("--json", metavar="PATH", help="write the report there too")
    add("--cache-dir", metavar="DIR", help="where compiled programs are kept")
    return parser


def _build(args: argparse.Namespace) -> Path:
    defines = {name: value if equals else None for name, equals, value in (d.partition("=") for d in args.defines)}
    plan = compile_commands(
        args.sources, None, warp_size=args.warp_size, checked=not args.fast, include=args.include, defines=defines,
        cache_dir=args.cache_dir, program=True,
    )  # fmt: skip
    return run_plan(plan)


def _policy(args: argparse.Namespace) -> Policy:
    return Policy(
        lane_order=args.lane_order, block_order=args.block_order, warp_order=args.warp_order, seed=args.seed,
        strict_exit=not args.lenient_exit, integer_overflow=not args.wrap, time_limit=args.time_limit,
        stack_bytes=args.stack_bytes,
    )  # fmt: skip


def _run(program: Path, arguments: Sequence[str], policy: Policy) -> tuple[int, Report | None]:
    """The exit code (128 + the signal that ended it) and the report that the program left."""
    words = " ".join(f"{name}={value}" for name, value in policy.settings())
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder) / "report.json"
        env = {**os.environ, "SIMT_REPORT": str(left), "SIMT_POLICY": words}
        code = subprocess.run([str(program), *arguments], env=env).returncode
        if code < 0:
            print(f"the program was ended by {signal.Signals(-code).name}, in its host code", file=sys.stderr)
            code = 128 - code
        return code, read_report(left.read_bytes(), str(program)) if left.exists() else None
