"""Compiles a CUDA program that has a `main`, runs it on the CPU, and prints its faults and counters."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from .build import CompileError, compile_commands, run_plan
from .policy import CHOICES, Policy
from .report import Report, read_report
from .toolchain import ToolchainError

#: The first bytes of a report file. A file that `--json` names is overwritten only if it is empty or begins with them.
_REPORT_HEAD = b'{\n "warp_size"'


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Compile a CUDA program, run the program on the CPU, and print its faults and counters.

    The exit code is 2 if the command line is wrong or the program does not compile. Otherwise, the exit code is that of
    the program, if the program's exit code is not 0. Otherwise, the exit code is 1 if the checks found a fault or the
    program left no report, and 0 in all other cases.

    :param argv: the words of the command line; the default is the command line of this process
    :param prog: the name of the command in messages
    :return: the exit code
    :raises SystemExit: the command line is wrong, or asks for help; it has the exit code
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the locale may be unable to encode a path
    args = _parser(prog).parse_args(argv)
    try:
        policy = _policy(args)
        with _report_file(args.json):
            program = _build(args)
    except (ValueError, OSError, CompileError, ToolchainError) as error:
        compiler_spoke = isinstance(error, CompileError) and error.command
        print(error if compiler_spoke else f"error: {error}", file=sys.stderr)
        return 2
    code, left = _run(program, args.arguments, policy)
    report = _read(left, program)
    if report is None:
        print("the program ended without a report", file=sys.stderr)
        return code or 1
    if args.json:
        text = json.dumps(dataclasses.asdict(report), indent=1) + "\n"
        Path(args.json).write_text(text, encoding="utf-8", errors="surrogateescape")
    try:
        print(report, flush=True)
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code or int(bool(report.findings))


@contextmanager
def _report_file(path: str | None) -> Iterator[None]:
    """Return a context manager that first checks whether a report can be written to the file `path`.

    The check creates a missing file. If the body of the `with` statement raises an exception, the created file is
    removed. If `path` is None or empty, the context manager does nothing.

    :raises ValueError: the file cannot be written, or has content that is not a report
    """
    if not path:
        yield
        return
    _refuse_to_lose(path)
    existed = os.path.exists(path)
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror})") from None
    try:
        yield
    except BaseException:
        if not existed:
            os.unlink(path)
        raise


def _refuse_to_lose(path: str) -> None:
    """Raise ValueError if a report must not overwrite `path`.

    A report may overwrite only another report, an empty file, or a character device such as /dev/null.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if stat.S_ISCHR(mode):
        return
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: cannot be written (not a regular file)")
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if not _REPORT_HEAD.startswith(file.read(len(_REPORT_HEAD))):
            raise ValueError(f"{path}: this file is not a report and would be overwritten. Remove it, or name another")


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports a wrong command line in a single line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Print `message`, which describes a mistake in the command line, and end the process with exit code 2."""
        if message.endswith("FILE.cu"):
            message = f"no program is given; name its source: {self.prog} scale.cu"
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _parser(prog: str | None) -> argparse.ArgumentParser:
    parser = _Parser(prog=prog or "simt", description=__doc__)
    add = parser.add_argument
    add("sources", nargs="+", metavar="FILE.cu", help="sources of one program; one of them has main()")
    add("--warp-size", type=int, choices=(32, 64), default=64)
    add("--fast", action="store_true", help="run at full speed, without checks and counters of memory accesses")
    for name, choices in CHOICES.items():
        add(f"--{name.replace('_', '-')}", choices=choices, default=getattr(Policy, name))
    add("--seed", type=int, default=0, help="seed of random orders")
    add("--lenient-exit", action="store_true", help="allow barriers after some threads have returned")
    add("--wrap", action="store_true", help="do not report the overflow of signed integers")
    add("--time-limit", type=float, default=60, metavar="S", help="seconds for one launch, 0 for no limit (60)")
    add("--stack-bytes", type=int, default=Policy.stack_bytes, metavar="N", help="bytes of local memory of each thread")
    add("-I", dest="include", action="append", default=[], metavar="DIR", help="search DIR for headers")
    add("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="define a macro")
    add("--arg", dest="arguments", action="append", default=[], metavar="WORD", help="an argument for the program")
    add("--json", metavar="PATH", help="also write the report to PATH")
    add("--cache-dir", metavar="DIR", help="keep compiled programs in DIR")
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


def _run(program: Path, arguments: Sequence[str], policy: Policy) -> tuple[int, bytes | None]:
    """Run the compiled program, and return its exit code and the bytes of its report.

    The bytes are None if the program wrote no report. If a signal ended the program, the exit code is 128 plus the
    signal's number.

    `arguments`: the command-line arguments of the program.
    """
    words = " ".join(f"{name}={value}" for name, value in policy.settings())
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder) / "report.json"
        env = {**os.environ, "SIMT_REPORT": str(left), "SIMT_POLICY": words}
        code = subprocess.run([str(program), *arguments], env=env).returncode
        if code < 0:
            print(f"the program was ended by {_signal_name(-code)}, in its host code", file=sys.stderr)
            code = 128 - code
        return code, left.read_bytes() if left.exists() else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _read(left: bytes | None, program: Path) -> Report | None:
    """Parse the report that a compiled program wrote. Return None if the report is missing or incomplete.

    `left`: the bytes of the report, or None.
    `program`: the path of the compiled program.
    """
    try:
        return read_report(left, str(program)) if left else None
    except ValueError:
        return None
