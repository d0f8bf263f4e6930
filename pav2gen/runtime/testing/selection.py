"""Selects the tests that a pytest session runs.

With ``--full``, each kernel runs all its tests. Without ``--full``, each kernel runs only the tests with the marker
``every_kernel``. The kernels in ``Chosen`` also run other tests, in place of the kernels that have similar source code.
Without ``--full``, but on a GPU, every CUDA kernel also runs all GPU tests except the tests of long sequences.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ..building import prefetch
from ..choice.dispatch_row import Row
from . import representatives
from .cuda_harness import WARP_SIZES, machines

#: A library of CUDA kernels: the machine, and whether it is a checked build.
Library = tuple[str, bool]


class Chosen(NamedTuple):
    """Kernels that run tests in place of other kernels. Each field of ``Chosen`` is a set of kernel symbols.

    torch: the kernels that run the tests of PyTorch kernels.
    cuda: the kernels that run CUDA tests with 64 threads per warp and without memory checks.
    few: the kernels that run tests with memory checks, tests with 32 threads per warp, and tests of long sequences.
    bodies: the kernels that run tests with both memory checks and 32 threads per warp.
    """

    torch: set[str]
    cuda: set[str]
    few: set[str]
    bodies: set[str]


class Selection:
    """Selects the tests of one package in a pytest session.

    package: the generated package, as a module.
    """

    def __init__(self, package: ModuleType) -> None:
        self.root: Path = package.kernels.root
        self.rows: Sequence[Row] = package.kernels.rows
        self.libraries: dict[Library, list[Row]] = {}
        self._selected: Any = None  # the configuration of the session for which tests were selected
        self._finished: Any = None

    def owns(self, item: Any) -> bool:
        """Return whether the pytest item ``item`` is a test of a kernel in the package."""
        return hasattr(item.module, "SYMBOL") and str(item.path).startswith(f"{self.root}/")

    def select(self, config: Any, items: list[Any]) -> None:
        """Remove the tests that this session does not need from ``items``, and move CUDA tests to the end of ``items``.

        CUDA tests run last, so that their kernels can compile while the other tests run. Pytest calls this method
        several times in a session, and only the first call changes ``items``.
        """
        if self._selected is config:
            return
        self._selected = config
        own = {item for item in items if self.owns(item)}
        if not config.getoption("full", False):
            chosen = choose(self.rows, self.root, {item.module.SYMBOL for item in own})
            left_out = {item for item in own if not runs(item, chosen)}
            if left_out:
                config.hook.pytest_deselected(items=list(left_out))
                items[:] = [item for item in items if item not in left_out]
                own -= left_out
        of_cuda = {item for item in own if needs_library(item)}
        items.sort(key=lambda item: item in of_cuda)
        self.libraries = libraries(self.rows, of_cuda)

    def finish(self, config: Any) -> None:
        """Start to compile the libraries that the selected CUDA tests need, unless the tests run on a GPU."""
        if self._finished is config or config.option.collectonly:
            return
        self._finished = config
        gc.freeze()  # what was collected stays until the end: later collections of garbage need not look at it
        wanted = {(WARP_SIZES[machine], checked): [row.symbol for row in rows]
                  for (machine, checked), rows in self.libraries.items() if machine in WARP_SIZES}  # fmt: skip
        if "gpu" not in machines():
            prefetch.start(self.root, wanted)

    def rows_of(self, item: Any) -> list[Row]:
        """Return the dispatch table rows of all kernels in the library that the CUDA test ``item`` needs."""
        return self.libraries[library_of(item)]


_selections: dict[str, Selection] = {}


def of_package(package: ModuleType) -> Selection:
    """Return the ``Selection`` of a generated package. All spec files of the package use the same ``Selection``."""
    return _selections.setdefault(package.__name__, Selection(package))


def needs_library(item: Any) -> bool:
    """Return whether the pytest item ``item`` runs a compiled CUDA kernel."""
    return "cuda_rows" in getattr(item, "fixturenames", ())


def library_of(item: Any) -> Library:
    """Return the library that the CUDA test ``item`` needs: ``gpu`` or a key of ``WARP_SIZES``, and whether memory is
    checked.
    """
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "checked" in item.fixturenames:
        return parameters["host"], True
    return parameters.get("machine", machines()[0]), False


def libraries(rows: Sequence[Row], items: Iterable[Any]) -> dict[Library, list[Row]]:
    """Return the dispatch table rows of the kernels in each library that the CUDA tests ``items`` need.

    The function ``last`` gives the order of the libraries.
    """
    wanted: dict[Library, set[str]] = {}
    for item in items:
        wanted.setdefault(library_of(item), set()).add(item.module.SYMBOL)
    return {kind: [row for row in rows if row.cuda and row.symbol in wanted[kind]] for kind in sorted(wanted, key=last)}


def last(kind: Library) -> tuple[bool, bool]:
    """Return the key by which libraries are sorted: whether memory is checked, and whether warps have 32 threads."""
    machine, checked = kind
    return checked, machine == "warp32"


def choose(rows: Iterable[Row], root: Path, tested: set[str]) -> Chosen:
    """Choose the kernels that run tests in place of other kernels.

    rows: the dispatch table of the package.
    root: the folder of the package.
    tested: the symbols of the kernels to choose from.
    """
    ordered = sorted((row for row in rows if row.symbol in tested), key=lambda row: (row.partition_size, row.symbol))
    of_torch = {row.symbol: representatives.of_module(root, row) for row in ordered if row.torch}
    cuda = {
        row.symbol: representatives.read(root / row.cuda, row.symbol[len("pav2_") :]) for row in ordered if row.cuda
    }
    return Chosen(
        torch=representatives.representatives(of_torch),
        cuda=representatives.representatives(cuda),
        few=of_each_operator(ordered, cuda, representatives.few),
        bodies=representatives.one_of_each_body(cuda),
    )


def of_each_operator(
    rows: Iterable[Row],
    sources: Mapping[str, representatives.Source],
    choose: Callable[[Mapping[str, representatives.Source]], set[str]],
) -> set[str]:
    """Apply ``choose`` to the kernels of each operator (decode, extend and cache), and return the union of the results.

    rows: dispatch table rows; rows without an entry in ``sources`` are ignored.
    sources: maps the symbol of each kernel to the kernel's source.
    """
    groups: dict[str, dict[str, representatives.Source]] = {}
    for row in rows:
        if row.symbol in sources:
            groups.setdefault(row.operator, {})[row.symbol] = sources[row.symbol]
    return set().union(*(choose(group) for group in groups.values()))


def runs(item: Any, chosen: Chosen) -> bool:
    """Return whether the pytest item ``item`` runs in a session without ``--full``."""
    symbol = item.module.SYMBOL
    every = item.get_closest_marker("every_kernel") is not None
    if not needs_library(item):
        return every or symbol in chosen.torch
    machine, checked = library_of(item)
    if checked:
        return symbol in (chosen.bodies if machine == "warp32" else chosen.few)
    if "cuda" in item.fixturenames and machine != "warp32":
        return every or machine == "gpu" or symbol in chosen.cuda
    return symbol in chosen.few
