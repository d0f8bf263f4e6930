"""Writes that happen or don't: a fault at any step leaves everything as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pav2gen.errors import UserError
from pav2gen.install.editing.transaction import Change, transaction

from .conftest import checksums


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "old").mkdir(parents=True)
    (root / "old/a").write_bytes(b"a")
    (root / "old/b").write_bytes(b"b")
    (root / "old/b").chmod(0o640)
    (root / "old/read_only").write_bytes(b"r")
    (root / "old/read_only").chmod(0o444)
    return root


def changes(root: Path) -> list[Change]:
    return [
        Change(root / "record", b"draft"),
        Change(root / "new/deep/c", b"c"),
        Change(root / "old/a", None),
        Change(root / "old/b", b"B"),
        Change(root / "old/read_only", b"R"),
        Change(root / "old/absent", None),
        Change(root / "record", b"final"),
    ]


def test_changes_are_made_in_their_order_with_modes_kept(root: Path) -> None:
    with transaction(changes(root), "root"):
        pass
    found = {path: mode for path, (mode, _) in checksums(root).items() if (root / path).is_file()}
    assert found == {"record": 0o644, "new/deep/c": 0o644, "old/b": 0o640, "old/read_only": 0o444}
    assert (root / "record").read_bytes() == b"final"
    assert (root / "old/read_only").read_bytes() == b"R"


@pytest.mark.parametrize("step", range(1, 6))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_fault_at_any_write_takes_all_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException
) -> None:
    before = checksums(root)
    failing_at(monkeypatch, step, error)
    expected = UserError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as raised, transaction(changes(root), "root"):
        pytest.fail("the block must not run")
    if isinstance(error, OSError):
        assert str(raised.value) == "root: cannot be written (No space left on device); all changes were undone"
    assert checksums(root) == before


def failing_at(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException) -> None:
    """The ``step``-th rename fails; those that take changes back don't."""
    calls, replace = iter(range(1, 100)), os.replace

    def faulty(source: str, target: str) -> None:
        if next(calls) == step:
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", faulty)


def test_a_fault_in_the_block_takes_all_back(root: Path) -> None:
    before = checksums(root)
    with pytest.raises(RuntimeError, match="later"), transaction(changes(root), "root"):
        assert checksums(root) != before
        raise RuntimeError("later")
    assert checksums(root) == before


def test_what_cannot_be_put_back_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(source: str, target: str) -> None:
        raise OSError(5, "Input/output error")

    lost = pytest.raises(UserError, match="some files could not be restored; restore them from version control")
    with lost, transaction(changes(root), "root"):
        monkeypatch.setattr(os, "replace", never)
        raise RuntimeError


def test_a_folder_that_cannot_be_written_is_refused_at_once(root: Path, as_nobody: Callable[..., str]) -> None:
    before = checksums(root)

    def write() -> None:
        with transaction([Change(root / "old/a", b"x")], "root"):
            pass

    said = as_nobody(write)
    assert said == f"root: cannot be written ({root}/old: no permission); nothing was changed"
    assert checksums(root) == before
