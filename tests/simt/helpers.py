"""Calling test kernels, and reading what the reports say."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np

from pav2gen.runtime import simt

HERE = Path(__file__).parent


def call(program: simt.Program, name: str, *arguments: Any) -> int:
    """Call a function with arrays as pointers and ints as they are (64 bits wide)."""
    words = [
        a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else ctypes.c_longlong(a) for a in arguments
    ]
    return int(program.fn(name)(*words))


def run(
    program: simt.Program,
    name: str,
    *arguments: Any,
    readonly: tuple[int, ...] = (),
    scratch: tuple[int, ...] = (),
    **policy: Any,
) -> tuple[int, simt.Report]:
    """One call in a session of its own, its arrays registered as a0, a1, …"""
    with program.session(**policy) as session:
        for i, a in enumerate(arguments):
            if isinstance(a, np.ndarray):
                session.buffer(f"a{i}", a, writable=i not in readonly, initialised=i not in scratch)
        code = call(program, name, *arguments)
    return code, session.report


def kinds(report: simt.Report) -> list[str]:
    return [f.kind for f in report.findings]


def marks(finding: simt.Finding, source: str = "faults.cu") -> set[str]:
    """The marks of the lines that a finding names."""
    texts = (HERE / source).read_text().split("\n")
    found = set()
    for location in finding.locations:
        mark = re.search(r"// @(\w+)$", texts[location.line - 1])
        found.add(mark.group(1) if mark else f"line {location.line}")
    return found
