"""Which tests of generated kernels run by default, and which with ``--full``."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pav2gen.runtime import library
from pav2gen.runtime.testing import representatives, selection

from .conftest import GENERATED

ROWS = library.package_rows(GENERATED)
PACKAGE = SimpleNamespace(kernels=SimpleNamespace(root=GENERATED, rows=ROWS))
CHOSEN = selection.choose(ROWS, GENERATED, {row.symbol for row in ROWS})
MACHINES = ("warp64", "warp32")


class Item:
    """A collected test. kind: the fixture by which it gets its kernel. every: whether it is marked every_kernel."""

    def __init__(self, row, kind, parameters=None, every=False, path=None):
        self.module = Mock(SYMBOL=row.symbol)
        self.path = path or GENERATED / row.spec / "tests" / "test_it.py"
        self.fixturenames = [kind, *(["cuda_rows"] if kind != "kernel" else []), *(parameters or {})]
        self.callspec = Mock(params=parameters or {})
        self.row, self.kind = row, kind
        self.name = f"{kind}{' of every kernel' if every else ''} {' '.join((parameters or {}).values())}".strip()
        self.get_closest_marker = lambda name: Mock() if every and name == "every_kernel" else None


def items_of(rows):
    """One test of each kind for each kernel, in the order in which pytest collects them."""
    return [
        item
        for row in rows
        for item in [
            *(Item(row, "kernel", every=every) for every in (True, False)),
            *(Item(row, "cuda", {"machine": name}, every) for every in (True, False) for name in MACHINES),
            *(Item(row, "checked", {"host": name}) for name in MACHINES),
            Item(row, "long_cuda"),
        ]
        if kind_of(row, item)
    ]


def kind_of(row, item):
    return row.torch if item.kind == "kernel" else row.cuda


def selected(items, full=False):
    chosen = selection.Selection(PACKAGE)
    chosen.select(Mock(getoption=lambda name, default=None: full), items)
    return chosen


def test_what_each_kernel_runs_by_default():
    items = items_of(ROWS)
    selected(items)
    for row in ROWS:
        expected = {"kernel of every kernel": row.torch, "cuda of every kernel warp64": row.cuda}
        expected["kernel"] = row.symbol in CHOSEN.torch
        expected["cuda warp64"] = row.symbol in CHOSEN.cuda
        for name in ("cuda of every kernel warp32", "cuda warp32", "checked warp64", "long_cuda"):
            expected[name] = row.symbol in CHOSEN.few
        expected["checked warp32"] = row.symbol in CHOSEN.bodies
        assert {item.name for item in items if item.row is row} == {name for name, runs in expected.items() if runs}


def test_full_runs_all_tests_of_all_kernels():
    items = items_of(ROWS)
    everything = set(items)
    selected(items, full=True)
    assert set(items) == everything


@pytest.mark.parametrize("full", [False, True])
def test_cuda_tests_come_last_and_their_libraries_in_the_order_of_need(full):
    items = items_of(ROWS)
    chosen = selected(items, full)
    assert [item.kind != "kernel" for item in items] == sorted(item.kind != "kernel" for item in items)
    assert list(chosen.libraries) == [(machine, checked) for checked in (False, True) for machine in MACHINES]
    for item in items:
        if item.kind != "kernel":
            assert item.row in chosen.rows_of(item)
    for kind, rows in chosen.libraries.items():
        assert rows == [row for row in ROWS if any(row is item.row for item in items if of_library(item, kind))]


def of_library(item, kind):
    return item.kind != "kernel" and selection.library_of(item) == kind


def test_the_chosen_kernels_have_each_body_and_each_value_of_each_constant():
    cuda = {row.symbol: representatives.read(GENERATED / row.cuda, row.symbol[5:]) for row in ROWS if row.cuda}
    torch = {row.symbol: representatives.of_module(GENERATED, row) for row in ROWS if row.torch}
    for sources, names in ((cuda, CHOSEN.few), (cuda, CHOSEN.cuda), (torch, CHOSEN.torch)):
        for operator in ("decode", "extend", "cache"):
            group = {row.symbol: sources[row.symbol] for row in ROWS if row.operator == operator}
            found = [group[name] for name in names & group.keys()]
            assert {source.body for source in found} == {source.body for source in group.values()}
            assert frozenset().union(*(source.constants for source in found)) == frozenset().union(
                *(source.constants for source in group.values())
            )
    assert {cuda[name].body for name in CHOSEN.bodies} == {source.body for source in cuda.values()}
    assert len(CHOSEN.bodies) == len({source.body for source in cuda.values()})
    assert len(CHOSEN.bodies) <= len(CHOSEN.few) < len(CHOSEN.cuda) < len(cuda)


def test_the_only_kernel_of_a_session_runs_all_its_tests():
    items = items_of(ROWS[:1])
    count = len(items)
    selected(items)
    assert len(items) == count


def test_a_gpu_runs_all_kernels():
    items = [Item(row, "cuda", {"machine": "gpu"}) for row in ROWS if row.cuda]
    count = len(items)
    selected(items)
    assert len(items) == count


def test_tests_of_other_folders_are_left_alone():
    other = [Item(row, "checked", {"host": "warp32"}, path=Path("/elsewhere/test_it.py")) for row in ROWS]
    items = [*items_of(ROWS), *other]
    selected(items)
    assert [item for item in items if item in other] == other


def test_the_hooks_of_all_specs_select_once_in_a_session():
    items, config = items_of(ROWS), Mock(getoption=lambda name, default=None: False)
    chosen = selection.Selection(PACKAGE)
    chosen.select(config, items)
    kept, libraries = list(items), chosen.libraries
    chosen.select(config, items)
    assert items == kept and chosen.libraries is libraries and config.hook.pytest_deselected.call_count == 1
    items = items_of(ROWS)
    chosen.select(Mock(getoption=lambda name, default=None: True), items)  # another session
    assert len(items) > len(kept)


def test_a_session_compiles_once(monkeypatch):
    started = []
    monkeypatch.setattr(selection.prefetch, "start", lambda root, wanted: started.append(wanted))
    monkeypatch.setattr(selection, "machines", lambda: MACHINES)
    monkeypatch.setattr(selection.gc, "freeze", lambda: None)
    config = Mock(getoption=lambda name, default=None: False, option=Mock(collectonly=False))
    chosen = selection.Selection(PACKAGE)
    chosen.select(config, items_of(ROWS))
    chosen.finish(config)
    chosen.finish(config)
    (wanted,) = started
    assert list(wanted) == [(64, False), (32, False), (64, True), (32, True)]
    assert set(wanted[32, True]) == CHOSEN.bodies and set(wanted[64, True]) == CHOSEN.few
