"""The lock of a folder: whatever the environment, however it is named, and never for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from pav2gen.errors import UserError
from pav2gen.output import lock
from pav2gen.output.lock import locked, no_wait, shared
from tests.conftest import REPOSITORY

OUT = Path("generated")


@pytest.fixture(autouse=True)
def in_folder(folder: Path) -> None:
    """Each test has a working folder of its own."""


def held(folder: Path, kind: str = "locked") -> str:
    """What another process, with another TMPDIR, is told that it waits for; empty if it gets the lock at once."""
    code = (
        "import sys; from pathlib import Path; from pav2gen.output import lock\n"
        "lock.PATIENCE = 0.0\n"
        "try:\n"
        f"    with lock.{kind}(Path(sys.argv[1]), lambda holder: print(holder)): pass\n"
        "except lock.UserError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": "/nonexistent"}
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_one_writer_however_the_folder_is_named_and_whatever_the_environment() -> None:
    OUT.mkdir()
    Path("link").symlink_to(OUT)
    Path("other").mkdir()
    with locked(OUT, no_wait):
        for name in (OUT, Path("./generated"), OUT.absolute(), Path("link"), Path("other/../generated")):
            assert "process" in held(name) and "process" in held(name, "shared")
        assert held(Path("other")) == ""
    assert held(OUT) == ""


def test_the_wait_says_for_whom_and_ends() -> None:
    OUT.mkdir()
    with locked(OUT, no_wait):
        holder, end = held(OUT).splitlines()
    assert holder.startswith(f"process {os.getpid()} (")
    assert end == f"generated: has been locked by {holder} for over 0 s; end that process, or try again later"


def test_readers_share_the_folder_and_keep_writers_out() -> None:
    OUT.mkdir()
    with shared(OUT, no_wait):
        assert held(OUT, "shared") == ""
        assert held(OUT) != ""


def test_nothing_stays_in_the_folder_or_in_that_of_temporary_files(tmp_path: Path) -> None:
    OUT.mkdir()
    with locked(OUT, no_wait):
        pass
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_is_made_goes_again_if_nothing_was_written() -> None:
    with locked(Path("a/b/c"), no_wait, create=True):
        assert Path("a/b/c").is_dir()
    assert not Path("a").exists()
    with locked(Path("a/b/c"), no_wait, create=True):
        Path("a/b/c/file").touch()
    assert Path("a/b/c/file").exists()


def test_a_missing_folder_is_not_made_to_read() -> None:
    with shared(OUT, no_wait), locked(OUT, no_wait):
        pass
    assert not OUT.exists()


def test_a_folder_that_was_removed_while_another_waited_is_made_again() -> None:
    waits, done = threading.Event(), threading.Event()

    def second() -> None:
        with locked(OUT, lambda holder: waits.set(), create=True):
            (OUT / "mine").touch()
        done.set()

    with locked(OUT, no_wait, create=True):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(10)
    thread.join(10)
    assert done.is_set() and (OUT / "mine").exists()


@pytest.mark.parametrize("code", ["ENOLCK", "ENOTSUP"])
def test_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    import errno

    def refuse(*arguments: object) -> None:
        raise OSError(getattr(errno, code), "No locks available")

    OUT.mkdir()
    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"generated: cannot be locked \(No locks available\)"), locked(OUT, no_wait):
        pass


def test_two_builds_of_two_environments_lose_nothing(folder: Path) -> None:
    from tests.conftest import SPEC

    command = [sys.executable, "-m", "pav2gen", "build"]
    sizes = {"one": 64, "two": 128}
    for name, size in sizes.items():
        text = SPEC.format(name=name, head_size=size, partition_size=[256, 512], dtype="float16", backends="[torch]")
        Path(f"{name}.yaml").write_text(text, "utf-8")
        Path(f"tmp_{name}").mkdir()
    with ExitStack() as running:
        builds = [
            running.enter_context(
                subprocess.Popen(
                    [*command, f"{name}.yaml"],
                    env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": f"tmp_{name}"},
                    stdout=subprocess.DEVNULL,
                )
            )
            for name in ("one", "two")
        ]
        assert [build.wait(60) for build in builds] == [0, 0]
    table = (OUT / "dispatch.py").read_text("utf-8")
    assert all(f"pav2_{name}_hd{size}" in table for name, size in sizes.items())
