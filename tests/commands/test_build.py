"""Building and removing specs in one package: the table, filters, clashes, the manifest, dry runs, builds at once."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import threading
from ast import literal_eval
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pav2gen.commands.build import BuildOptions, Outcome, build, remove
from pav2gen.commands.check import check
from pav2gen.errors import UserError
from pav2gen.family.variant import Variant, expand
from pav2gen.output import journal
from pav2gen.output.lock import locked, no_wait
from pav2gen.reading.selection import load, select
from pav2gen.render import manifest
from pav2gen.render.fileset import FileSet
from pav2gen.render.manifest_reader import NotAManifest, parse
from pav2gen.render.package import render_package
from pav2gen.render.templates import Templates
from pav2gen.runtime.choice.dispatch_row import Row
from pav2gen.runtime.choice.key import Key
from tests.conftest import REPOSITORY, snapshot, touched
from tests.faults import killed

Write = Callable[..., Path]
Make = Callable[..., Outcome]
OUT = Path("generated")


def table() -> list[str]:
    """The symbols of the dispatch table."""
    return literal_eval(OUT.joinpath("dispatch.py").read_text().rpartition("ROWS = ")[2])  # type: ignore[no-any-return]


def read_manifest(owner: str = "") -> dict[str, Any]:
    return json.loads((OUT / manifest.path_of(owner)).read_text())  # type: ignore[no-any-return]


class TestTable:
    def test_building_one_spec_keeps_the_others_rows(self, make: Make, write_spec: Write) -> None:
        make(write_spec("b", head_size=64))
        make(write_spec("a", head_size=128))
        make(write_spec("b", head_size=64, partition_size=512))
        assert table() == [
            "pav2_a_hd128_g6_b16_f16_p256",
            "pav2_a_hd128_g6_b16_f16_p512",
            "pav2_b_hd64_g6_b16_f16_p512",
        ]

    def test_the_order_of_builds_does_not_matter(self, make: Make, write_spec: Write) -> None:
        specs = [write_spec("c", head_size=64), write_spec("a", head_size=128), write_spec("b", head_size=256)]
        make(*specs)
        for spec in specs:
            make(spec, out=Path("singly"))
        make(*reversed(specs), out=Path("reversed"))
        assert snapshot(OUT) == snapshot(Path("singly")) == snapshot(Path("reversed"))

    def test_settings_of_cuda_that_extend_ignores_are_named(self, write_spec: Write) -> None:
        path = write_spec("a", partition_size=512, backends="[torch, cuda]")
        text = path.read_text("utf-8") + "operators: [decode, extend]\n"
        said = "cuda.threads and cuda.step apply to decode kernels alone; extend kernels keep the plan's layout"
        line = text.count("\n") + 1
        for setting, notes in (("", ()), ("cuda: {threads: 64, step: 256}\n", (f"{path}:{line}: {said}",))):
            path.write_text(text + setting, "utf-8")
            assert build([path], BuildOptions(dry_run=True)).notes == notes

    def test_the_first_by_name_serves_a_key_and_the_build_says_so(self, make: Make, write_spec: Write) -> None:
        make(write_spec("b", partition_size=[256, 1024]))
        outcome = make(write_spec("a", partition_size=512))
        assert outcome.notes == (
            "a serves the keys of 2 kernels of b: if two specs have the same key, the first by name serves it",
        )
        assert table() == ["pav2_a_hd256_g6_b16_f16_p512"]
        assert make(write_spec("b", partition_size=[256, 1024])).notes == outcome.notes
        remove("a", BuildOptions())
        assert len(read_manifest("b")["rows"]) == 2

    def test_a_rows_file_is_there(self, make: Make, write_spec: Write) -> None:
        make(write_spec(backends="[torch, cuda]"))
        for row in read_manifest("small")["rows"]:
            assert (OUT / (row["torch"].replace(".", "/") + ".py")).is_file()
            assert (OUT / row["cuda"]).is_file()
            assert (OUT / row["test"]).is_file()


class TestManifest:
    def test_it_has_what_the_documentation_says(self, make: Make, write_spec: Write, templates: Path) -> None:
        spec = write_spec()
        make(spec)
        text = (REPOSITORY / "docs" / "manifest.md").read_text()
        for owner in ("", "small"):
            data = read_manifest(owner)
            assert list(data) == ["schema", "generator", "spec", "filter", "templates", "rows", "files", "stamp"]
            for key in (*data, *data["spec"], *(data["rows"][0] if data["rows"] else ())):
                assert f"`{key}`" in text, f"docs/manifest.md does not explain {key}"
        assert read_manifest("small")["spec"]["sha256"] == hashlib.sha256(spec.read_bytes()).hexdigest()

    def test_it_names_every_other_file_with_its_sha256(self, make: Make, write_spec: Write) -> None:
        make(write_spec("a", head_size=64), write_spec("b", head_size=128))
        seen = {path.relative_to(OUT).as_posix(): path for path in OUT.rglob("*") if path.is_file()}
        for owner in ("", "a", "b"):
            for path, digest in read_manifest(owner)["files"].items():
                assert hashlib.sha256(seen.pop(manifest.below(owner, path)).read_bytes()).hexdigest() == digest
        assert seen.keys() == {"MANIFEST.json", "a/MANIFEST.json", "b/MANIFEST.json"}

    def test_the_stamp_is_the_sha256_of_what_is_above_it(self, make: Make, write_spec: Write) -> None:
        make(write_spec())
        *above, stamp, end = (OUT / "small" / "MANIFEST.json").read_bytes().splitlines(keepends=True)
        assert stamp == f' "stamp": "{hashlib.sha256(b"".join(above)).hexdigest()}"\n'.encode()
        assert end == b"}\n"

    def test_what_is_written_is_what_is_read(self, templates: Path, write_spec: Write) -> None:
        package = render_package(load([write_spec()]), [], Templates(templates))
        for owner in ("", "small"):
            content = package.files[owner][manifest.path_of(owner)]
            read = parse(owner, content)
            assert read.content() == content
            again = FileSet()
            again.update({path: text for path, text in package.files[owner].items() if path != read.path})
            entries = {name: getattr(read, name) for name in ("generator", "spec", "filter", "templates", "rows")}
            assert manifest.describe(owner, again, **entries).content() == content

    def test_rows_are_plain_json(self, templates: Path, write_spec: Write) -> None:
        """Rows that were just planned and rows that were read back must make the same table."""
        for chosen in load([write_spec()]):
            for _, p in chosen.kernels:
                entry = manifest.manifest_row(p.row(), tuned=[], test="", figures=p.figures)
                read = json.loads(json.dumps(entry))
                assert read == entry
                assert manifest.table_row(read) == p.row()

    def test_its_columns_are_documented(self) -> None:
        page = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text("utf-8")
        table = page.partition("A row of `rows`:")[2].partition("\n\nWhere")[0]
        columns = re.findall(r"^\| `(\w+)` \|", table, re.M)
        assert columns == [*Row._fields, *manifest.EXTRA_COLUMNS]
        key = next(line for line in table.splitlines() if line.startswith("| `key`"))
        assert re.findall(r"`(\w+)`", key)[1:] == list(Key._fields)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda text: text.replace("hd256", "hd257", 1), "was edited by hand"),
            (lambda text: text + "\n", "was edited by hand"),
            (lambda text: text.replace("\n", "\r\n"), "was edited by hand"),
            (lambda text: text[: len(text) // 2], "is not JSON"),
            (lambda text: "<<<<<<< HEAD\n" + text, "is not JSON"),
            (
                lambda text: text.replace('"schema": 1', '"schema": 2'),
                "has schema '2', but this pav2gen reads schema 1",
            ),
            (lambda text: "[]", "is not a manifest"),
            (lambda text: "{}", "is not a manifest"),
            (lambda text: "\xff", "is not JSON"),
        ],
    )
    def test_a_manifest_that_is_not_as_a_build_wrote_it(
        self, make: Make, write_spec: Write, change: Callable[[str], str], reason: str
    ) -> None:
        make(write_spec())
        file = OUT / "small" / "MANIFEST.json"
        file.write_bytes(change(file.read_text()).encode("latin-1"))
        with pytest.raises(NotAManifest, match=reason):
            parse("small", file.read_bytes())
        with pytest.raises(UserError, match=f"generated/small/MANIFEST.json: {reason}.*specs/small.yaml --force"):
            make(write_spec("other", head_size=64))
        with pytest.raises(UserError, match=r"small/MANIFEST\.json; nothing was written"):
            make(write_spec())
        make(write_spec(), force=True)
        make(write_spec("other", head_size=64))


class TestFilter:
    FAMILY = expand(
        "f",
        {
            "head_size": [64, 128],
            "gqa_ratio": [1],
            "block_size": [16],
            "dtype": ["float16", "bfloat16"],
            "kv_cache_dtype": ["auto", "fp8_e4m3"],
            "alibi": [False, True],
            "blocksparse": [False],
            "partition_size": [256, 512],
        },
    )

    @pytest.mark.parametrize(
        ("filters", "wanted"),
        [
            ([], lambda v: True),
            (["head_size=64"], lambda v: v.head_size == 64),
            (["head_size=64", "head_size=128"], lambda v: True),
            (["head_size=64", "dtype=float16"], lambda v: v.head_size == 64 and v.dtype == "float16"),
            (["alibi=true"], lambda v: v.alibi),
            (["kv_cache_dtype=fp8"], lambda v: v.kv_cache_dtype == "fp8_e4m3"),
            (["*_p512"], lambda v: v.partition_size == 512),
            (["hd64_*", "*_p512"], lambda v: v.head_size == 64 or v.partition_size == 512),
            (["hd64_*", "partition_size=512"], lambda v: v.head_size == 64 and v.partition_size == 512),
        ],
    )
    def test_what_filters_select(self, filters: list[str], wanted: Callable[[Variant], bool]) -> None:
        assert select(self.FAMILY, filters) == tuple(filter(wanted, self.FAMILY))

    @pytest.mark.parametrize(
        ("filters", "message"),
        [
            (["zzz*"], r"--filter 'zzz\*' selects none of 32 variants"),
            (["head_size=64", "head_size=96"], "'head_size=96' selects none"),
            (["head_sise=64"], "'head_sise=64' names no axis; did you mean head_size"),
            (["head_size=64", "hd128_*"], "together select nothing"),
            ([""], "selects none"),
        ],
    )
    def test_a_filter_that_selects_nothing_is_an_error(self, filters: list[str], message: str) -> None:
        with pytest.raises(UserError, match=message):
            select(self.FAMILY, filters)

    def test_a_part_needs_a_folder_of_its_own(self, make: Make, write_spec: Write) -> None:
        part = Path("part")
        with pytest.raises(UserError, match="name one with --out"):
            make(write_spec(), filters=("*_p512",))
        make(write_spec())
        make(write_spec(), out=part)
        with pytest.raises(UserError, match=r"needs a separate folder \(part has whole specs: small\)"):
            make(write_spec("other", head_size=64), out=part, filters=("*_p512",))
        shutil.rmtree(part)
        outcome = make(write_spec(), out=part, filters=("*_p512",))
        assert outcome.kernels == {"small": 1}
        with pytest.raises(UserError, match=r"part: has only a part of small \('--filter=\*_p512'\)"):
            make(write_spec("other", head_size=64), out=part)
        make(write_spec(), out=part, filters=("*_p256",))
        make(write_spec(), out=part)
        assert snapshot(part) == snapshot(OUT)

    def test_a_spec_of_which_nothing_is_selected_is_left_out(self, make: Make, write_spec: Write) -> None:
        specs = write_spec("a", head_size=64), write_spec("b", head_size=128)
        assert make(*specs, out=Path("part"), filters=("head_size=128",)).kernels == {"b": 2}
        assert not Path("part", "a").exists()


class TestBuild:
    def test_nothing_is_written_when_one_spec_is_bad(self, make: Make, write_spec: Write) -> None:
        good = write_spec("good")
        bad = write_spec("bad", head_size=-1)
        with pytest.raises(UserError, match=r"specs/bad\.yaml:"):
            make(good, bad)
        assert not OUT.exists()

    def test_two_specs_of_one_name_are_an_error_and_one_given_twice_is_not(self, make: Make, write_spec: Write) -> None:
        spec = write_spec()
        shutil.copy(spec, "copy.yaml")
        with pytest.raises(UserError, match=r"copy\.yaml: the name small is already that of specs/small\.yaml"):
            make(spec, Path("copy.yaml"))
        assert make(spec, Path("specs/../specs/small.yaml")).kernels == {"small": 2}

    def test_a_mistake_in_a_template_writes_nothing(self, make: Make, write_spec: Write, templates: Path) -> None:
        make(write_spec())
        before = touched(OUT)
        (templates / "tests" / "test_kernel.py.j2").write_text("{{ p.no_such_figure }}")
        with pytest.raises(UserError, match=r"templates/tests/test_kernel\.py\.j2:1.*no_such_figure"):
            make(write_spec(partition_size=1024))
        assert touched(OUT) == before

    def test_a_dry_run_says_what_would_change_and_changes_nothing(self, make: Make, write_spec: Write) -> None:
        outcome = make(write_spec(), dry_run=True)
        assert not OUT.exists() and outcome.count("new") == len(outcome.changes) == 15
        make(write_spec())
        (OUT / "pytest.ini").write_text("mine")
        before = touched(OUT)
        outcome = make(write_spec(partition_size=[512, 1024]), dry_run=True)
        assert touched(OUT) == before
        assert [outcome.count(kind) for kind in ("new", "changed", "removed")] == [2, 8, 2]
        assert "pytest.ini" in str(outcome.refusal)

    def test_a_dry_run_is_what_the_build_then_does(self, make: Make, write_spec: Write) -> None:
        make(write_spec())
        spec = write_spec(partition_size=[512, 1024])
        assert make(spec, dry_run=True).changes == make(spec).changes


class TestRemove:
    def test_its_files_and_rows_go_and_no_others(self, make: Make, write_spec: Write, templates: Path) -> None:
        a, b = write_spec("a", head_size=64), write_spec("b", head_size=128)
        make(a)
        before = snapshot(OUT)
        make(a, b)
        outcome = remove("b", BuildOptions(templates=Templates(templates)))
        assert snapshot(OUT) == before
        assert outcome.count("removed") == 7

    @pytest.mark.parametrize("name", ["small", "specs/small.yaml", "elsewhere/small.yaml"])
    def test_by_name_or_path_though_the_spec_is_gone(
        self, make: Make, write_spec: Write, templates: Path, name: str
    ) -> None:
        spec = write_spec()
        make(spec)
        spec.unlink()
        remove(name, BuildOptions(templates=Templates(templates)))
        assert table() == [] and not (OUT / "small").exists()

    def test_by_the_files_name_where_it_is_not_the_specs(self, make: Make, write_spec: Write, templates: Path) -> None:
        spec = write_spec().rename("specs/other_name.yaml")
        make(spec)
        remove("other_name.yaml", BuildOptions(templates=Templates(templates)))
        assert not (OUT / "small").exists()

    def test_a_name_that_is_not_there(self, make: Make, write_spec: Write) -> None:
        with pytest.raises(UserError, match="generated: there is no spec 'small' in it; nothing was built there"):
            remove("small", BuildOptions())
        make(write_spec())
        for name in ("smal", "runtime", "", "..", "/"):
            with pytest.raises(UserError, match="there is no spec"):
                remove(name, BuildOptions())

    def test_an_edited_file_stays_without_force(self, make: Make, write_spec: Write, templates: Path) -> None:
        make(write_spec())
        readme = OUT / "small" / "README.md"
        readme.write_text("mine")
        with pytest.raises(UserError, match="--force"):
            remove("small", BuildOptions(templates=Templates(templates)))
        assert readme.read_text() == "mine"
        remove("small", BuildOptions(templates=Templates(templates), force=True))
        assert not readme.exists()


class TestTwoAtOnce:
    def test_builds_of_two_specs_at_once(self, write_spec: Write) -> None:
        specs = [write_spec(f"spec{n}", head_size=64 * n, partition_size=[256, 512, 1024]) for n in (1, 2, 3, 4)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", "pav2gen", "build"]
        for _ in range(2):
            running = [
                subprocess.Popen([*command, str(spec)], env=environment, stdout=subprocess.PIPE) for spec in specs
            ]
            assert [process.communicate()[0] and process.wait() for process in running] == [0, 0, 0, 0]
        subprocess.run([*command, *map(str, specs), "--out", "alone"], env=environment, check=True, capture_output=True)
        assert snapshot(OUT) == snapshot(Path("alone"))

    def test_the_second_waits_and_says_for_whom(self, make: Make, write_spec: Write) -> None:
        spec, holders = write_spec(), queue.Queue[str]()
        build = threading.Thread(target=make, args=[spec], kwargs={"on_wait": holders.put})
        with locked(OUT, no_wait, create=True):
            build.start()
            assert holders.get(timeout=10).startswith(f"process {os.getpid()} (")
            build.join(0.1)
            assert build.is_alive() and list(OUT.iterdir()) == []
        build.join(10)
        assert not build.is_alive() and (OUT / "dispatch.py").exists()


class TestCheck:
    @pytest.fixture
    def drift(self, make: Make, write_spec: Write, templates: Path) -> Callable[..., list[tuple[str, str]]]:
        make(write_spec("a", head_size=64), write_spec("b", head_size=128))

        def drift(*names: str, whole: bool = True) -> list[tuple[str, str]]:
            paths = [Path("specs", f"{name}.yaml") for name in names or ("a", "b")]
            report = check(paths, BuildOptions(templates=Templates(templates)), whole)
            self.repairs = list(report.repairs)
            return [(each.kind, each.path) for each in report.drifts]

        return drift

    def test_current(self, drift: Callable[..., list[tuple[str, str]]]) -> None:
        for name in ("a/__pycache__/x.pyc", ".pytest_cache/v/x", "a/tests/__pycache__/y.pyc", "runtime/simt/host.so"):
            (OUT / name).parent.mkdir(exist_ok=True, parents=True)
            (OUT / name).touch()
        before = touched(OUT)
        assert drift() == drift("a", whole=False) == []
        assert self.repairs == []
        assert touched(OUT) == before

    def test_every_kind_told_apart(self, drift: Callable[..., list[tuple[str, str]]], templates: Path) -> None:
        kernels = OUT / "a" / "torch_kernels"
        (kernels / "hd64_g6_b16_f16_p256.py").write_text("mine")
        (kernels / "hd64_g6_b16_f16_p512.py").unlink()
        (kernels / "hd64_old.py").touch()
        (OUT / "notes.txt").touch()
        (templates / "package" / "pytest.ini.j2").write_text("{{ header }}\nnew\n")
        assert drift() == [
            ("hand-edited", "a/torch_kernels/hd64_g6_b16_f16_p256.py"),
            ("changed", "MANIFEST.json"),
            ("changed", "pytest.ini"),
            ("missing", "a/torch_kernels/hd64_g6_b16_f16_p512.py"),
            ("orphan", "a/torch_kernels/hd64_old.py"),
            ("orphan", "notes.txt"),
        ]
        assert self.repairs == [
            "pav2gen build specs/a.yaml --force  # discards the edits by hand",
            "rm generated/a/torch_kernels/hd64_old.py generated/notes.txt",
        ]

    def test_a_spec_that_changed(self, drift: Callable[..., list[tuple[str, str]]], write_spec: Write) -> None:
        write_spec("a", head_size=64, partition_size=256)
        found = drift()
        assert ("orphan", "a/torch_kernels/hd64_g6_b16_f16_p512.py") in found
        assert ("changed", "a/torch_kernels/hd64_g6_b16_f16_p256.py") in found  # the spec's sha256 is in its header
        assert ("changed", "dispatch.py") in found
        assert not any(path.startswith("b/") for _, path in found)
        assert self.repairs == ["pav2gen build specs/a.yaml"]

    def test_a_spec_that_is_gone(self, drift: Callable[..., list[tuple[str, str]]]) -> None:
        assert drift("a") == [("orphan", "b/")]
        assert self.repairs == ["pav2gen remove b"]
        assert drift("a", whole=False) == []

    def test_a_spec_that_was_never_built(
        self, drift: Callable[..., list[tuple[str, str]]], write_spec: Write, templates: Path
    ) -> None:
        write_spec("c", head_size=256)
        assert drift("a", "b", "c") == [("changed", "MANIFEST.json"), ("changed", "dispatch.py"), ("missing", "c/")]
        assert self.repairs == ["pav2gen build specs/c.yaml"]

    def test_no_package_at_all(self, drift: Callable[..., list[tuple[str, str]]]) -> None:
        shutil.rmtree(OUT)
        assert drift() == [("missing", ""), ("missing", "a/"), ("missing", "b/")]
        assert self.repairs == ["pav2gen build specs/a.yaml specs/b.yaml"]
        assert not OUT.exists()

    def test_a_build_that_was_cut_short(
        self, drift: Callable[..., list[tuple[str, str]]], make: Make, write_spec: Write
    ) -> None:
        spec = write_spec("b", head_size=128, partition_size=1024)
        assert killed(12, lambda: make(spec))
        assert drift()[0] == ("incomplete", ".pav2gen-build.json")
        assert self.repairs == ["pav2gen build specs/b.yaml"]
        assert drift("a", whole=False) == [("incomplete", ".pav2gen-build.json")]
        assert self.repairs == ["pav2gen build specs/b.yaml"]
        assert drift("a") == [("incomplete", ".pav2gen-build.json"), ("orphan", "b/")]
        assert self.repairs == ["pav2gen remove b"]
        make(spec)
        assert drift() == []

    def test_a_removal_that_was_cut_short(self, drift: Callable[..., list[tuple[str, str]]], templates: Path) -> None:
        options = BuildOptions(templates=Templates(templates))
        number = next(n for n in itertools.count(1) if self.cut_short(n, options))
        assert (OUT / journal.NAME).exists(), number
        assert ("incomplete", ".pav2gen-build.json") in drift("a")
        assert self.repairs[-1] == "pav2gen remove b"
        remove("b", options)
        assert drift("a") == []

    @staticmethod
    def cut_short(number: int, options: BuildOptions) -> bool:
        """Kill a removal at a step; whether the manifest was gone by then."""
        assert killed(number, lambda: remove("b", options))
        return not (OUT / "b" / "MANIFEST.json").exists()

    def test_a_build_that_was_cut_short_in_its_first_steps(
        self, drift: Callable[..., list[tuple[str, str]]], make: Make, write_spec: Write
    ) -> None:
        assert killed(3, lambda: make(write_spec("b", head_size=128, partition_size=1024)))
        write_spec("b", head_size=128)
        assert drift() == [("incomplete", ".pav2gen-build.json")]
        assert self.repairs == ["pav2gen build specs/a.yaml"]
        make(Path("specs/a.yaml"))
        assert drift() == []

    def test_a_manifest_that_is_gone(self, drift: Callable[..., list[tuple[str, str]]], make: Make) -> None:
        (OUT / "a" / "MANIFEST.json").unlink()
        assert drift() == [("incomplete", "a/MANIFEST.json")]
        make(Path("specs/a.yaml"))
        assert drift() == []

    def test_a_manifest_that_was_edited(self, drift: Callable[..., list[tuple[str, str]]]) -> None:
        file = OUT / "a" / "MANIFEST.json"
        file.write_text(file.read_text().replace("a small", "a large"))
        assert drift() == [("hand-edited", "a/MANIFEST.json")]

    def test_the_repairs_repair(
        self, drift: Callable[..., list[tuple[str, str]]], make: Make, write_spec: Write, templates: Path
    ) -> None:
        before = snapshot(OUT)
        make(write_spec("c", head_size=256))
        Path("specs/c.yaml").unlink()
        (OUT / "a" / "README.md").write_text("mine")
        (OUT / "b" / "README.md").unlink()
        (OUT / "extra file").touch()
        drift()
        for command in self.repairs:
            words = shlex.split(command, comments=True)
            if words[:2] == ["pav2gen", "build"]:
                make(*map(Path, [word for word in words[2:] if word != "--force"]), force="--force" in words)
            elif words[:2] == ["pav2gen", "remove"]:
                remove(words[2], BuildOptions(templates=Templates(templates)))
            else:
                subprocess.run(words, check=True)
        assert drift() == []
        assert snapshot(OUT) == before

    def test_a_link_is_no_file_of_ours(self, drift: Callable[..., list[tuple[str, str]]]) -> None:
        file = OUT / "a" / "README.md"
        file.rename("README.md")
        file.symlink_to(Path("README.md").resolve())
        (OUT / "loose").symlink_to("nowhere")
        (OUT / "loop").symlink_to(OUT.resolve())
        assert drift() == [("hand-edited", "a/README.md"), ("orphan", "loop"), ("orphan", "loose")]


@pytest.mark.parametrize(
    "name, fit", [("kernels-v1", "kernels_v1"), ("a b", "a_b"), ("1st", "pav2_1st"), ("class", "pav2_class")]
)
def test_a_folder_that_python_could_not_import(make: Make, write_spec: Write, name: str, fit: str) -> None:
    with pytest.raises(UserError, match=f"is not a valid name for a Python package; take '?{fit}"):
        make(write_spec(), out=Path(name))
    assert not Path(name).exists()


def test_a_package_inside_a_package(make: Make, write_spec: Write) -> None:
    path = write_spec()
    make(path)
    make(path, out=OUT / "inner")
    before = snapshot(OUT)
    for act in (
        make,
        lambda path: check([path], BuildOptions(), whole=True),
        lambda path: remove("small", BuildOptions()),
    ):
        with pytest.raises(UserError, match="generated/inner: is a separate generated package"):
            act(path)
    assert snapshot(OUT) == before
