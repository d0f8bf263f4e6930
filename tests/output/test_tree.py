"""What a build may do to a tree: whose files it replaces and removes, and what a link, a fault or a kill changes."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pav2gen.commands.build import BuildOptions, Outcome, build, remove
from pav2gen.commands.check import check
from pav2gen.errors import UserError
from pav2gen.output import journal
from pav2gen.render.templates import Templates
from tests.conftest import REPOSITORY, snapshot, touched
from tests.faults import Step, before_each_step, killed, raise_at

Write = Callable[..., Path]
Make = Callable[..., Outcome]
OUT = Path("generated")
KERNEL = OUT / "small" / "torch_kernels" / "hd256_g6_b16_f16_p512.py"


def kinds(outcome: Outcome) -> dict[str, str]:
    """Path -> what the build did there, of all but manifests and the table."""
    return {
        change.path: change.kind
        for change in outcome.changes
        if not change.path.endswith(("MANIFEST.json", "dispatch.py"))
    }


def files(seen: dict[str, tuple[int, str]]) -> dict[str, tuple[int, str]]:
    """A snapshot without its folders."""
    return {path: state for path, state in seen.items() if not stat.S_ISDIR(state[0])}


class TestIdempotence:
    def test_a_second_build_touches_nothing(self, make: Make, write_spec: Write) -> None:
        spec = write_spec()
        make(spec)
        before = touched(OUT)
        again = make(spec)
        assert touched(OUT) == before
        assert (again.changes, again.unchanged) == ((), len([path for path in OUT.rglob("*") if path.is_file()]))

    def test_a_second_build_reads_every_file(
        self, make: Make, write_spec: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = write_spec()
        make(spec)
        opened: set[str] = set()
        original = os.open

        def note(path: str, *rest: Any, **more: Any) -> int:
            opened.add(str(path))
            return original(path, *rest, **more)

        monkeypatch.setattr(os, "open", note)
        make(spec)
        assert {str(path.resolve()) for path in OUT.rglob("*") if path.is_file()} <= opened

    def test_a_change_that_keeps_size_and_time_is_seen(self, make: Make, write_spec: Write) -> None:
        spec = write_spec()
        make(spec)
        status = KERNEL.stat()
        KERNEL.write_bytes(KERNEL.read_bytes().replace(b"512", b"513"))
        os.utime(KERNEL, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(UserError, match=r"1 file edited .*hd256_g6_b16_f16_p512\.py"):
            make(spec)

    def test_only_what_differs_is_written(self, make: Make, write_spec: Write, templates: Path) -> None:
        spec = write_spec()
        make(spec)
        before = touched(OUT)
        (templates / "package" / "pytest.ini.j2").write_text("{{ header }}\n[pytest]\naddopts = -q\n")
        make(spec)
        after = touched(OUT)
        changed = {path for path in before if path != "generated" and before[path] != after[path]}
        assert changed == {"generated/pytest.ini", "generated/MANIFEST.json"}


class TestOwnership:
    def test_stale_files_and_empty_folders_go(self, make: Make, write_spec: Write) -> None:
        make(write_spec(backends="[torch, cuda]"))
        compiled = KERNEL.parent / "__pycache__" / f"{KERNEL.stem}.cpython-311.pyc"
        kept = KERNEL.parent / "__pycache__" / "other.cpython-311.pyc"
        compiled.parent.mkdir()
        compiled.touch()
        kept.touch()
        outcome = make(write_spec(partition_size=256))
        assert [path for path, kind in kinds(outcome).items() if kind == "removed"] == [
            "small/cuda_kernels/hd256_g6_b16_f16_p256.cu",
            "small/cuda_kernels/hd256_g6_b16_f16_p512.cu",
            "small/tests/test_small_hd256_g6_b16_f16_p512.py",
            "small/torch_kernels/hd256_g6_b16_f16_p512.py",
        ]
        assert not (OUT / "small" / "cuda_kernels").exists()
        assert not compiled.exists() and kept.exists()
        shutil.rmtree(kept.parent)
        fresh = make(write_spec(partition_size=256), out=Path("fresh"))
        assert snapshot(OUT) == snapshot(Path(fresh.shown))

    def test_a_file_that_is_not_ours_is_never_removed(self, make: Make, write_spec: Write, templates: Path) -> None:
        make(write_spec())
        for name in ("notes.txt", "small/notes.txt", "small/torch_kernels/mine.py"):
            (OUT / name).write_text("mine")
        make(write_spec(partition_size=1024), force=True)
        remove("small", BuildOptions(templates=Templates(templates), force=True))
        left = {path.relative_to(OUT).as_posix() for path in (OUT / "small").rglob("*") if path.is_file()}
        assert left == {"small/notes.txt", "small/torch_kernels/mine.py"}
        assert all((OUT / name).read_text() == "mine" for name in ("notes.txt", *left))

    @pytest.mark.parametrize(
        "name", [KERNEL, OUT / "dispatch.py", OUT / "small" / "MANIFEST.json", OUT / "MANIFEST.json"]
    )
    def test_an_edited_file_is_not_replaced(self, make: Make, write_spec: Write, templates: Path, name: Path) -> None:
        spec = write_spec()
        make(spec)
        name.write_text(name.read_text().replace("hd256", "hd257", 1).replace("pytest", "pytesT", 1))
        before = snapshot(OUT)
        for file in templates.rglob("*.j2"):
            file.write_text(file.read_text() + "\n")
        with pytest.raises(UserError, match="--force") as caught:
            make(spec)
        assert str(name.relative_to(OUT)) in str(caught.value)
        assert snapshot(OUT) == before
        make(spec, force=True)
        make(spec, out=Path("fresh"))
        assert snapshot(OUT) == snapshot(Path("fresh"))

    def test_all_edited_files_are_named_in_one_line(self, make: Make, write_spec: Write) -> None:
        spec = write_spec()
        make(spec)
        for name in ("dispatch.py", "pytest.ini"):
            (OUT / name).write_text("mine")
        with pytest.raises(
            UserError, match=r"^generated: 2 files edited .*: dispatch\.py, pytest\.ini; nothing"
        ) as caught:
            make(spec)
        assert "\n" not in str(caught.value)

    def test_an_edit_that_says_what_the_build_says_is_no_edit(self, make: Make, write_spec: Write) -> None:
        make(write_spec(partition_size=256))
        make(write_spec(), out=Path("other"))
        shutil.copy(Path("other") / KERNEL.relative_to(OUT), KERNEL)  # somebody was quicker
        make(write_spec())

    def test_a_file_in_the_way_is_not_replaced(self, make: Make, write_spec: Write) -> None:
        KERNEL.parent.mkdir(parents=True)
        KERNEL.write_text("mine")
        with pytest.raises(UserError, match="1 file edited or added by hand"):
            make(write_spec())
        assert snapshot(OUT).keys() == {"small", "small/torch_kernels", f"small/torch_kernels/{KERNEL.name}"}
        make(write_spec(), force=True)
        assert KERNEL.read_text() != "mine"

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_a_folder_with_other_files_is_refused(self, make: Make, write_spec: Write, dry_run: bool) -> None:
        (OUT / "runtime").mkdir(parents=True)
        (OUT / "notes.txt").write_text("mine")
        before = snapshot(OUT)
        message = "generated: is not a generated package, and has other files: notes.txt, runtime. Name a new"
        if dry_run:
            assert message in str(make(write_spec(), dry_run=True).refusal)
        else:
            with pytest.raises(UserError, match=message):
                make(write_spec())
        assert snapshot(OUT) == before
        make(write_spec(), force=True)
        make(write_spec(partition_size=256))  # a package now, which needs no force
        assert (OUT / "notes.txt").read_text() == "mine"

    def test_hidden_files_do_not_hinder_a_build(self, make: Make, write_spec: Write) -> None:
        OUT.mkdir()
        (OUT / ".gitkeep").touch()
        (OUT / "__pycache__").mkdir()
        assert make(write_spec()).refusal is None

    def test_an_edited_leftover_needs_force(self, make: Make, write_spec: Write) -> None:
        make(write_spec())
        KERNEL.write_text("mine")
        with pytest.raises(UserError, match="--force"):
            make(write_spec(partition_size=256))
        assert KERNEL.read_text() == "mine"
        make(write_spec(partition_size=256), force=True)
        assert not KERNEL.exists()

    def test_a_deleted_file_comes_back(self, make: Make, write_spec: Write) -> None:
        spec = write_spec()
        make(spec)
        before = snapshot(OUT)
        KERNEL.unlink()
        shutil.rmtree(OUT / "runtime")
        make(spec)
        assert snapshot(OUT) == before

    def test_mode_bits_are_kept(self, make: Make, write_spec: Write, templates: Path) -> None:
        make(write_spec())
        KERNEL.chmod(0o750)
        (templates / "torch" / "kernel.py.j2").write_text("{{ header }}\nNEW = True\n")
        previous = os.umask(0o077)
        try:
            make(write_spec(partition_size=[256, 512, 1024]))
        finally:
            os.umask(previous)
        assert KERNEL.stat().st_mode & 0o777 == 0o750
        assert KERNEL.with_stem("hd256_g6_b16_f16_p1024").stat().st_mode & 0o777 == 0o600
        assert "NEW" in KERNEL.read_text()

    @pytest.mark.parametrize("path", ["../outside.txt", "/etc/outside.txt", "a/../../outside.txt"])
    def test_a_manifest_never_owns_what_lies_outside(self, make: Make, write_spec: Write, path: str) -> None:
        from pav2gen.render import manifest

        make(write_spec())
        outside = Path("outside.txt")
        outside.write_text("mine")
        file = OUT / "small" / "MANIFEST.json"
        text = file.read_text().replace('"README.md"', f'"{path}"')
        body = text[: text.index(' "stamp"')]
        file.write_text(body + manifest.stamp_line(body))
        with pytest.raises(UserError, match="--force"):
            make(write_spec())
        make(write_spec(), force=True)
        assert outside.read_text() == "mine"


class TestLinks:
    def test_the_package_itself_may_be_a_link(self, make: Make, write_spec: Write) -> None:
        Path("elsewhere").mkdir()
        OUT.symlink_to("elsewhere")
        make(write_spec())
        before = touched(Path("elsewhere"))
        assert OUT.is_symlink() and Path("elsewhere", "dispatch.py").exists()
        make(write_spec(), out=Path("elsewhere"))
        assert touched(Path("elsewhere")) == before

    @pytest.mark.parametrize("inside", ["small", "small/torch_kernels", "runtime", journal.ASIDE])
    @pytest.mark.parametrize("force", [False, True])
    def test_nothing_is_written_through_a_linked_folder(
        self, make: Make, write_spec: Write, folder: Path, inside: str, force: bool
    ) -> None:
        outside = folder / "outside"
        outside.mkdir()
        (OUT / inside).parent.mkdir(parents=True)
        (OUT / inside).symlink_to(outside)
        with pytest.raises(UserError, match=f"generated/{inside}: is a symbolic link"):
            make(write_spec(), force=force)
        assert list(outside.iterdir()) == []

    @pytest.mark.parametrize("force", [False, True])
    def test_nothing_is_written_through_a_linked_file(
        self, make: Make, write_spec: Write, templates: Path, force: bool
    ) -> None:
        spec = write_spec()
        make(spec)
        outside = Path("outside.py")
        KERNEL.rename(outside)
        KERNEL.symlink_to(outside.resolve())
        before = outside.read_bytes()
        (templates / "torch" / "kernel.py.j2").write_text("{{ header }}\n")
        with pytest.raises(UserError, match="is a symbolic link"):
            make(spec, force=force)
        assert outside.read_bytes() == before and KERNEL.is_symlink()

    def test_a_link_in_the_place_of_a_stale_file_stays(self, make: Make, write_spec: Write) -> None:
        make(write_spec())
        KERNEL.unlink()
        KERNEL.symlink_to("/dev/null")
        make(write_spec(partition_size=256))
        assert KERNEL.is_symlink()

    @pytest.mark.parametrize(
        ("inside", "said"),
        [
            ("small", "there is no spec 'small' in it"),
            ("small/torch_kernels", "generated/small/torch_kernels: is a symbolic link"),
        ],
    )
    def test_remove_deletes_nothing_beyond_a_link(
        self, make: Make, write_spec: Write, templates: Path, folder: Path, inside: str, said: str
    ) -> None:
        make(write_spec())
        outside = folder / "outside"
        shutil.move(OUT / inside, outside)
        (OUT / inside).symlink_to(outside)
        before = snapshot(outside)
        with pytest.raises(UserError, match=said):
            remove("small", BuildOptions(templates=Templates(templates), force=True))
        assert snapshot(outside) == before

    def test_what_python_compiled_is_not_removed_beyond_a_link(
        self, make: Make, write_spec: Write, templates: Path, folder: Path
    ) -> None:
        make(write_spec())
        compiled = folder / "outside" / f"{KERNEL.stem}.cpython-311.pyc"
        compiled.parent.mkdir()
        compiled.touch()
        (KERNEL.parent / "__pycache__").symlink_to(compiled.parent)
        remove("small", BuildOptions(templates=Templates(templates)))
        assert not KERNEL.exists() and compiled.exists()

    def test_a_file_in_the_place_of_a_folder_and_the_other_way_round(self, make: Make, write_spec: Write) -> None:
        OUT.mkdir()
        (OUT / "small").write_text("mine")
        with pytest.raises(UserError, match="generated/small: is not a folder"):
            make(write_spec(), force=True)
        (OUT / "small").unlink()
        (OUT / "dispatch.py").mkdir()
        with pytest.raises(UserError, match=r"generated/dispatch\.py: is a folder"):
            make(write_spec(), force=True)

    def test_a_pipe_is_not_waited_for(self, make: Make, write_spec: Write) -> None:
        OUT.mkdir()
        os.mkfifo(OUT / "dispatch.py")
        with pytest.raises(UserError, match=r"generated/dispatch\.py: is a special file"):
            make(write_spec(), force=True)
        os.mkfifo(OUT / journal.NAME)
        with pytest.raises(UserError, match=r"generated/\.pav2gen-build\.json: is a special file"):
            make(write_spec(), force=True)

    def test_a_package_that_is_a_file_or_a_loop(self, make: Make, write_spec: Write) -> None:
        OUT.write_text("mine")
        with pytest.raises(UserError, match="generated: is not a folder"):
            make(write_spec())
        assert OUT.read_text() == "mine"
        OUT.unlink()
        OUT.symlink_to("generated")
        with pytest.raises(UserError, match="generated: "):
            make(write_spec())


class Scenario:
    """A build over an older one: new, changed and removed files, with a user's own file among them."""

    def __init__(self, make: Make, write_spec: Write, templates: Path, name: str) -> None:
        self._make, self._write_spec, self._templates, self._name = make, write_spec, templates, name
        self._prepare()
        self.old = snapshot(OUT)
        self.work()
        self.new = snapshot(OUT)
        assert self.new != self.old

    def start(self) -> None:
        """The tree before."""
        shutil.rmtree(OUT, ignore_errors=True)
        if Path("old").exists():
            shutil.copytree("old", OUT)

    def _prepare(self) -> None:
        self._kernel("{{ header }}\nOLD = {{ v.partition_size }}\n")
        if self._name != "first":
            self._make(self._write_spec(partition_size=[256, 512]))
            (OUT / "small" / "mine.txt").write_text("mine")
            shutil.copytree(OUT, "old")
        self._kernel("{{ header }}\nNEW = {{ v.partition_size }}\n")
        self._write_spec(partition_size=[512, 1024])
        self._options = BuildOptions(templates=Templates(self._templates))

    def work(self) -> None:
        """The build."""
        if self._name == "remove":
            remove("small", self._options)
        else:
            build([Path("specs/small.yaml")], self._options)

    def drift(self) -> set[str]:
        """The kinds of drift that ``check`` sees."""
        report = check([Path("specs/small.yaml")], self._options, whole=True)
        return {drift.kind for drift in report.drifts}

    def _kernel(self, text: str) -> None:
        (self._templates / "torch" / "kernel.py.j2").write_text(text)


@pytest.fixture(params=["first", "over", "remove"])
def scenario(request: pytest.FixtureRequest, make: Make, write_spec: Write, templates: Path) -> Scenario:
    return Scenario(make, write_spec, templates, request.param)


class TestKills:
    def test_a_kill_at_any_step_is_repaired_by_the_next_build(self, scenario: Scenario) -> None:
        for number in itertools.count(1):
            scenario.start()
            if not killed(number, scenario.work):
                break
            seen = snapshot(OUT)
            if seen not in (scenario.old, scenario.new) and seen.keys():
                assert "incomplete" in scenario.drift(), f"step {number}"
            scenario.work()
            assert snapshot(OUT) == scenario.new, f"step {number}"
        assert number > 25

    def test_after_a_kill_another_specs_build_leaves_this_one_incomplete(
        self, make: Make, write_spec: Write, templates: Path
    ) -> None:
        scenario = Scenario(make, write_spec, templates, "over")
        small, other = Path("specs/small.yaml"), write_spec("other", head_size=128)
        options = BuildOptions(templates=Templates(templates))
        (templates / "torch" / "kernel.py.j2").write_text("{{ header }}\nNEWER = {{ v.partition_size }}\n")
        newer = BuildOptions(templates=Templates(templates))
        expected, seen = None, set()
        for number in itertools.count(1):
            scenario.start()
            if not killed(number, scenario.work):
                break
            outcome = build([other], options)
            drifts = check([other], options, whole=False).drifts
            seen.add(outcome.notes)
            assert {drift.kind for drift in drifts} == ({"incomplete"} if outcome.notes else set())
            build([small, other], newer)  # without --force, though none of the new texts is what the kill left
            expected = expected or snapshot(OUT)
            assert snapshot(OUT) == expected, f"step {number}"
        assert seen == {(), ("small is still incomplete: its build was interrupted",)}

    def test_a_kill_twice_and_a_change_of_mind(self, make: Make, write_spec: Write, templates: Path) -> None:
        scenario = Scenario(make, write_spec, templates, "over")
        for first, second in itertools.product(range(12, 40, 9), repeat=2):
            scenario.start()
            killed(first, scenario.work)
            write_spec(partition_size=[256, 2048])
            killed(second, scenario.work)
            write_spec(partition_size=[512, 1024])
            scenario.work()
            assert snapshot(OUT) == scenario.new, (first, second)

    def test_a_second_kill_does_not_forget_the_first(self, make: Make, write_spec: Write, templates: Path) -> None:
        spec, ini, kernel = write_spec(), templates / "package" / "pytest.ini.j2", templates / "torch" / "kernel.py.j2"
        make(spec)
        ini.write_text("{{ header }}\n[pytest]\n# first\n")
        number = next(n for n in itertools.count(1) if killed(n, lambda: make(spec)) and "first" in self.ini())
        assert (OUT / journal.NAME).exists(), number
        kernel.write_text("{{ header }}\n")
        assert killed(25, lambda: make(spec)) and "first" in self.ini()
        ini.write_text("{{ header }}\n[pytest]\n# second\n")
        make(spec)
        assert "second" in self.ini()

    @staticmethod
    def ini() -> str:
        return (OUT / "pytest.ini").read_text()

    def test_what_was_edited_after_a_kill_is_still_an_edit(
        self, make: Make, write_spec: Write, templates: Path
    ) -> None:
        scenario = Scenario(make, write_spec, templates, "over")
        scenario.start()
        assert killed(30, scenario.work)
        KERNEL.write_text("mine")
        with pytest.raises(UserError, match="--force"):
            scenario.work()
        assert KERNEL.read_text() == "mine"

    def test_a_spoilt_journal_is_no_obstacle(self, make: Make, write_spec: Write, templates: Path) -> None:
        for text in ("", "[]", "{", '{"small": 1}', '{"small": {"../../x": ["0"]}}'):
            shutil.rmtree(OUT, ignore_errors=True)
            make(write_spec())
            before = snapshot(OUT)
            (OUT / journal.NAME).write_text(text)
            assert {
                drift.kind for drift in check([write_spec()], BuildOptions(templates=Templates(templates)), True).drifts
            } == {"incomplete"}
            make(write_spec())
            assert snapshot(OUT) == before

    def test_a_journal_never_owns_what_lies_outside(self, make: Make, write_spec: Write) -> None:
        spec = write_spec()
        make(spec)
        outside = Path("outside.txt")
        outside.write_text("mine")
        digest = hashlib.sha256(b"mine").hexdigest()
        (OUT / journal.NAME).write_text(json.dumps({"small": {"../outside.txt": [digest]}}))
        make(spec, force=True)
        assert outside.read_text() == "mine" and not (OUT / journal.NAME).exists()

    @pytest.mark.parametrize("delay", [0, 0.002, 0.005, 0.01])
    def test_a_real_kill_in_the_middle(self, write_spec: Write, delay: float) -> None:
        spec = write_spec(head_size=[64, 128, 256], partition_size=[256, 512, 1024], dtype="[float16, bfloat16]")
        command = [sys.executable, "-m", "pav2gen", "build", str(spec)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not (OUT / journal.NAME).exists():
                pass
            time.sleep(delay)
            process.kill()
        subprocess.run(command, check=True, env=environment, capture_output=True)
        subprocess.run([*command, "--out", "whole"], check=True, env=environment, capture_output=True)
        assert snapshot(OUT) == snapshot(Path("whole"))


def edit_at(path: Path) -> Callable[[Step], None]:
    """Someone saves ``path`` after the build compared the tree, right before it writes its journal."""

    def edit(step: Step) -> None:
        if step.name == "replace" and str(step.args[1]).endswith(journal.NAME):
            path.parent.mkdir(exist_ok=True)
            path.write_text("saved meanwhile")

    return edit


class TestEditsMeanwhile:
    """An edit that is saved while a build writes is not lost, wherever the build would have put something."""

    @pytest.mark.parametrize("name", ["p512.py", "p256.py", "p1024.py"], ids=["replaced", "removed", "new"])
    def test_a_file_that_the_build_changes(self, make: Make, write_spec: Write, templates: Path, name: str) -> None:
        scenario = Scenario(make, write_spec, templates, "over")
        scenario.start()
        edited = KERNEL.with_name(KERNEL.name.replace("p512.py", name))
        place = f"generated/{edited.relative_to(OUT)}"
        said = f"^{place}: was changed while the command ran; all changes were undone. Run the command again$"
        with before_each_step(edit_at(edited)), pytest.raises(UserError, match=said):
            scenario.work()
        assert edited.read_text() == "saved meanwhile"
        mine = edited.relative_to(OUT).as_posix()
        now, before = snapshot(OUT), scenario.old
        assert {path: now[path] for path in now if path != mine} == {
            path: before[path] for path in before if path != mine
        }

    def test_a_file_that_remove_removes(self, make: Make, write_spec: Write, templates: Path) -> None:
        scenario = Scenario(make, write_spec, templates, "remove")
        scenario.start()
        with before_each_step(edit_at(KERNEL)), pytest.raises(UserError, match="was changed while the command ran"):
            scenario.work()
        assert KERNEL.read_text() == "saved meanwhile" and (OUT / "small" / "MANIFEST.json").exists()

    def test_undoing_leaves_what_was_saved_after_the_build_wrote_it(
        self, make: Make, write_spec: Write, templates: Path
    ) -> None:
        scenario = Scenario(make, write_spec, templates, "over")
        scenario.start()

        def fault(step: Step) -> None:
            if step.name == "replace" and str(step.args[1]).endswith("small/MANIFEST.json"):
                KERNEL.write_text("saved meanwhile")
                raise OSError(errno.ENOSPC, "No space left on device", *step.args)

        with before_each_step(fault), pytest.raises(UserError, match="the package is incomplete"):
            scenario.work()
        assert KERNEL.read_text() == "saved meanwhile"
        assert "incomplete" in scenario.drift()


class TestOrder:
    def test_manifests_take_their_places_last_and_the_shared_one_last_of_all(self, scenario: Scenario) -> None:
        scenario.start()
        with before_each_step(lambda step: None) as steps:
            scenario.work()
        root = f"{OUT.resolve()}/"
        paths = [
            (step.name, str(step.args[-1]).removeprefix(root)) for step in steps if step.name in ("replace", "unlink")
        ]
        begun, *placed, ended = [(name, path) for name, path in paths if not path.startswith(f"{journal.ASIDE}/")]
        assert (begun, ended) == (("replace", journal.NAME), ("unlink", journal.NAME))
        assert placed[-1] == ("replace", "MANIFEST.json")
        manifests = [path.endswith("MANIFEST.json") for _, path in placed]
        assert manifests == sorted(manifests)
        removals = [name == "unlink" for (name, _), stamp in zip(placed, manifests) if not stamp]
        assert removals == sorted(removals)


class TestFaults:
    @pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
    def test_a_fault_at_any_step_changes_nothing(self, scenario: Scenario, error: BaseException) -> None:
        for number in itertools.count(1):
            scenario.start()
            caught = None
            with before_each_step(raise_at(number, error)) as steps:
                try:
                    scenario.work()
                except (UserError, KeyboardInterrupt) as raised:
                    caught = raised
            if len(steps) < number:
                break
            if caught is None:  # an empty folder could not be removed, which does no harm
                assert files(snapshot(OUT)) == files(scenario.new), steps[number - 1]
                continue
            assert snapshot(OUT) == scenario.old, steps[number - 1]
            if isinstance(caught, UserError):
                assert caught.where.startswith("generated")
                assert caught.message == "cannot be written (No space left on device); all changes were undone"
        assert number > 25

    def test_a_tree_that_can_no_longer_be_written_loses_nothing(self, scenario: Scenario) -> None:
        error = OSError(errno.EROFS, "Read-only file system")
        for number in itertools.count(1):
            scenario.start()
            message = ""
            with before_each_step(raise_at(number, error, onwards=True)) as steps:
                try:
                    scenario.work()
                except UserError as raised:
                    message = raised.message
            if len(steps) < number:
                break
            if message.endswith("all changes were undone"):
                assert snapshot(OUT) == scenario.old, steps[number - 1]
            elif message:
                assert message.endswith("the package is incomplete; run the same build again")
                assert "incomplete" in scenario.drift(), steps[number - 1]
            if message:
                scenario.work()
                assert snapshot(OUT) == scenario.new, steps[number - 1]
        assert number > 25

    def test_a_file_that_cannot_be_replaced(self, make: Make, write_spec: Write, templates: Path) -> None:
        scenario = Scenario(make, write_spec, templates, "over")
        scenario.start()
        before = touched(OUT / "small")

        def refuse(step: Step) -> None:
            if step.name == "replace" and str(step.args[1]).endswith("/dispatch.py"):
                raise PermissionError(errno.EPERM, "Operation not permitted", *step.args)

        message = r"^generated/dispatch\.py: cannot be written \(Operation not permitted\); all changes were undone$"
        with before_each_step(refuse), pytest.raises(UserError, match=message):
            scenario.work()
        assert snapshot(OUT) == scenario.old and touched(OUT / "small") == before

    def test_writes_that_take_less_than_they_are_given(
        self, make: Make, write_spec: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = write_spec()
        make(spec, out=Path("whole"))
        original = os.write
        monkeypatch.setattr(os, "write", lambda handle, content: original(handle, content[:100]))
        make(spec)
        assert snapshot(OUT) == snapshot(Path("whole"))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_read_only_tree(self, make: Make, write_spec: Write) -> None:
        make(write_spec())
        before = snapshot(OUT)
        OUT.chmod(0o555)
        try:
            with pytest.raises(UserError, match=r"Permission denied\); all changes were undone"):
                make(write_spec(partition_size=1024))
        finally:
            OUT.chmod(0o755)
        assert snapshot(OUT).keys() == before.keys()

    def test_a_parent_that_is_a_file(self, make: Make, write_spec: Write) -> None:
        Path("file").write_text("mine")
        with pytest.raises(UserError, match="file/generated"):
            make(write_spec(), out=Path("file/generated"))
        assert Path("file").read_text() == "mine"

    def test_a_folder_that_cannot_be_made_leaves_no_parents(self, make: Make, write_spec: Write) -> None:
        with before_each_step(raise_at(3, OSError(errno.ENOSPC, "No space left on device"))), pytest.raises(UserError):
            make(write_spec(), out=Path("a/b/c"))
        assert not Path("a").exists()
