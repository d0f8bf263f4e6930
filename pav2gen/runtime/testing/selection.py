"""Which tests a session runs: with ``--full`` all tests of all kernels, else fewer for kernels that others represent.

Without ``--full``:

* Every kernel runs the tests that are marked ``every_kernel``: the numbers at all boundaries, and what the generator
  planned for this kernel. CUDA kernels run them in the fast build with warps of 64 threads.
* The representatives of PyTorch kernels, and those of CUDA kernels, run all other tests of these builds.
* Fewer kernels run the tests of checked builds, of warps of 32 threads, and of long sequences. They have each body, and
  each value of each constant. Checked builds with warps of 32 threads run for one kernel of each body.

On a GPU, all kernels run all tests that need no CPU.
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
    """The symbols of the kernels that run tests for others.

    torch: run the tests of PyTorch kernels.
    cuda: run the tests of the fast build with warps of 64 threads.
    few: run checked builds, the fast build with warps of 32 threads, and long sequences.
    bodies: run checked builds with warps of 32 threads.
    """

    torch: set[str]
    cuda: set[str]
    few: set[str]
    bodies: set[str]


class Selection:
    """The tests of one package in a session.

    package: the generated package, as a module.
    """

    def __init__(self, package: ModuleType) -> None:
        self.root: Path = package.kernels.root
        self.rows: Sequence[Row] = package.kernels.rows
        self.libraries: dict[Library, list[Row]] = {}
        self._selected: Any = None  # the configuration of the session for which tests were selected
        self._finished: Any = None

    def owns(self, item: Any) -> bool:
        """Whether a collected test is one of a kernel of the package."""
        return hasattr(item.module, "SYMBOL") and str(item.path).startswith(f"{self.root}/")

    def select(self, config: Any, items: list[Any]) -> None:
        """Remove the tests that tests of another kernel replace, and move CUDA tests to the end.

        CUDA tests run last, because their kernels compile while the others run. Further calls in the same session do
        nothing: pytest calls a hook for each spec.
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
        """Begin to compile the libraries that the selected tests need, unless they run on a GPU."""
        if self._finished is config or config.option.collectonly:
            return
        self._finished = config
        gc.freeze()  # what was collected stays until the end: later collections of garbage need not look at it
        wanted = {(WARP_SIZES[machine], checked): [row.symbol for row in rows]
                  for (machine, checked), rows in self.libraries.items() if machine in WARP_SIZES}  # fmt: skip
        if "gpu" not in machines():
            prefetch.start(self.root, wanted)

    def rows_of(self, item: Any) -> list[Row]:
        """The rows of all kernels in the library that a CUDA test needs."""
        return self.libraries[library_of(item)]


_selections: dict[str, Selection] = {}


def of_package(package: ModuleType) -> Selection:
    """Return the selection of a package: the same one for all of its specs."""
    return _selections.setdefault(package.__name__, Selection(package))


def needs_library(item: Any) -> bool:
    """Whether a test runs a compiled CUDA kernel."""
    return "cuda_rows" in getattr(item, "fixturenames", ())


def library_of(item: Any) -> Library:
    """The library that a CUDA test needs."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "checked" in item.fixturenames:
        return parameters["host"], True
    return parameters.get("machine", machines()[0]), False


def libraries(rows: Sequence[Row], items: Iterable[Any]) -> dict[Library, list[Row]]:
    """The rows of the kernels in each library that CUDA tests need, in the order in which the tests need them."""
    wanted: dict[Library, set[str]] = {}
    for item in items:
        wanted.setdefault(library_of(item), set()).add(item.module.SYMBOL)
    return {kind: [row for row in rows if row.cuda and row.symbol in wanted[kind]] for kind in sorted(wanted, key=last)}


def last(kind: Library) -> tuple[bool, bool]:
    """The sort key of libraries: fast builds come before checked builds, and warps of 64 threads before 32."""
    machine, checked = kind
    return checked, machine == "warp32"


def choose(rows: Iterable[Row], root: Path, tested: set[str]) -> Chosen:
    """Choose the kernels that run tests for others, among the kernels ``tested`` (their symbols).

    root: the folder of the package.
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
    """Choose kernels of each operator by itself: decode, extend and cache."""
    groups: dict[str, dict[str, representatives.Source]] = {}
    for row in rows:
        if row.symbol in sources:
            groups.setdefault(row.operator, {})[row.symbol] = sources[row.symbol]
    return set().union(*(choose(group) for group in groups.values()))


def runs(item: Any, chosen: Chosen) -> bool:
    """Whether a test of the package runs without ``--full``."""
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
