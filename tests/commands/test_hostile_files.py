"""Files that pav2gen wrote and someone changed: one line says what is wrong, and nothing in them becomes code."""

from __future__ import annotations

import ast
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pav2gen.commands.build import BuildOptions, Outcome, build, remove
from pav2gen.commands.check import check
from pav2gen.errors import UserError
from pav2gen.install.package_contents import Choice, package_contents
from pav2gen.output import journal, tree
from pav2gen.output.journal import read_journal
from pav2gen.reading.selection import load
from pav2gen.render import manifest
from pav2gen.render.kernels import TABLE_TEMPLATE, Heading
from pav2gen.render.manifest import SHARED, stamp_line
from pav2gen.render.manifest_reader import parse
from pav2gen.render.package import render_package
from pav2gen.render.templates import Templates
from tests.conftest import REPOSITORY
from tests.mutants import FILES, byte_mutant, json_mutants

Write = Callable[..., Path]
Make = Callable[..., Outcome]
OUT = Path("generated")
MANIFEST = OUT / "small" / "MANIFEST.json"

#: A line of code that must not become one.
CODE = 'x\nimport os\nos.abort()\n"""'


def stamped(data: Any) -> bytes:
    """A manifest with a stamp that fits, as someone makes it who knows how."""
    data = {name: value for name, value in data.items() if name != "stamp"}
    body = json.dumps(data, indent=1).removesuffix("\n}") + ",\n"
    return (body + stamp_line(body)).encode()


def statements(table: bytes) -> set[str]:
    """The kinds of statements in the dispatch table, and what it assigns."""
    found = set()
    for node in ast.parse(table).body:
        names = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found.add(type(node).__name__ + "".join(f" {name.id}" for name in names if isinstance(name, ast.Name)))
    return found


@pytest.fixture
def package(write_spec: Write) -> Path:
    """A package with two specs, rendered by the generator's own templates."""
    build([write_spec(), write_spec("other", head_size=64)], BuildOptions())
    return OUT


CHANGES = {
    "the hash of a spec": lambda d: d["spec"].update(sha256=CODE),
    "the file of a spec": lambda d: d["spec"].update(file=CODE),
    "a tuning file": lambda d: d["spec"].update(tuning={CODE: "0" * 64}),
    "the hash of a tuning file": lambda d: d["spec"].update(tuning={"specs/tuning/small.cpu.yaml": CODE}),
    "a symbol": lambda d: d["rows"][0].update(symbol=CODE),
    "a module": lambda d: d["rows"][0].update(torch=CODE),
    "a value of a key": lambda d: d["rows"][0]["key"].update(dtype=CODE),
    "a number": lambda d: d["rows"][0].update(min_seq_len="__import__('os').abort()"),
    "a device": lambda d: d["rows"][0].update(
        tuned=[{"backend": "torch", "device": CODE, "kv_heads": 1, "num_seqs": 1, "max_seq_len": 1}]
    ),
    "an axis that is not there": lambda d: d["rows"][0]["key"].pop("dtype"),
    "an axis that nobody knows": lambda d: d["rows"][0]["key"].update({CODE: 1}),
    "no rows": lambda d: d.update(rows=None),
    "the name of another": lambda d: d["spec"].update(name="other"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_manifest_says_never_becomes_code(package: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(MANIFEST.read_text("utf-8"))
    change(data)
    MANIFEST.write_bytes(stamped(data))
    before = (OUT / "dispatch.py").read_bytes()
    said = r"^generated/small/MANIFEST\.json: .*this version of pav2gen.*; run: pav2gen build specs/small\.yaml$"
    for act in (
        lambda: build([Path("specs/other.yaml")], BuildOptions()),
        lambda: remove("other", BuildOptions()),
        lambda: contents(),
    ):
        with pytest.raises(UserError, match=said):
            act()
    assert (OUT / "dispatch.py").read_bytes() == before
    build([Path("specs/small.yaml")], BuildOptions())  # it repairs the manifest without --force: its files are ours
    assert check([Path("specs/small.yaml"), Path("specs/other.yaml")], BuildOptions(), True).drifts == ()


def contents() -> object:
    """What an install would take of the package."""
    return package_contents(OUT, Choice(), ())


@pytest.mark.parametrize("field", ["files", "stamp"])
def test_a_manifest_without_files_or_stamp_owns_nothing(package: Path, field: str) -> None:
    data = json.loads(MANIFEST.read_text("utf-8"))
    if field == "files":
        MANIFEST.write_bytes(stamped({**data, "files": []}))
    else:
        MANIFEST.write_text(json.dumps({**data, "stamp": None}), "utf-8")
    with pytest.raises(UserError, match=r"^generated/small/MANIFEST\.json: .*specs/small\.yaml --force$"):
        build([Path("specs/other.yaml")], BuildOptions())


@pytest.mark.parametrize("template", ["package/dispatch.py.j2", "package/README.md.j2"])
def test_a_header_never_becomes_more_than_a_header(templates: Path, template: str) -> None:
    lines = Heading(template, Templates(templates), CODE, {f"specs/{CODE}": f"{CODE} --> <b>"}).text.split("\n")
    begin, end = ("# ", "") if template.endswith(".py.j2") else ("<!-- ", " -->")
    assert len(lines) == 4 and all(line.startswith(begin) and line.endswith(end) for line in lines)
    assert not end or all(line.count("--") == 2 for line in lines)


#: What a dispatch table consists of.
STATEMENTS = {"Expr", "ImportFrom", "Assign ROWS", "AnnAssign TUNED", "Assign FILES"}


@pytest.mark.parametrize("data", FILES, ids=range(len(FILES)))
def test_any_file_in_the_place_of_a_manifest_or_a_journal(package: Path, data: bytes) -> None:
    specs = [Path("specs/small.yaml"), Path("specs/other.yaml")]
    MANIFEST.write_bytes(data)
    with pytest.raises(UserError, match=r"^generated/small/MANIFEST\.json: "):
        build(specs[1:], BuildOptions())
    build(specs, BuildOptions(force=True))
    (OUT / journal.NAME).write_bytes(data)
    build(specs, BuildOptions())
    assert check(specs, BuildOptions(), True).drifts == ()


def test_mutants_of_a_manifest(request: pytest.FixtureRequest, write_spec: Write, templates: Path) -> None:
    """Either the manifest is refused, in one line, or the table that is made of it is a table and nothing else."""
    count = 5000 if request.config.getoption("--full") else 150
    folder = templates / "package"
    shutil.copy(REPOSITORY / "templates" / TABLE_TEMPLATE, folder / "dispatch.py.j2")
    package = render_package(load([write_spec()]), [], Templates(templates))
    original = json.loads(package.files["small"]["small/MANIFEST.json"])
    row = original["rows"][-1]
    row["modification"] = {"score": "s + bias[h] * (k - q)", "mask": "k < 4", "tensors": [["bias", "heads"]]}
    row["key"]["modification"] = "relative_bias"
    assert parse("small", stamped(original)).unfit == ""
    MANIFEST.parent.mkdir(parents=True)
    rendering, chance, seen = Templates(templates), random.Random(1), {"refused": 0, "rendered": 0}
    for mutant in json_mutants(original, count):
        MANIFEST.write_bytes(restamped(mutant, chance))
        try:
            found = tree.read_tree(OUT).sound_manifests()
            table = render_package([], found, rendering).files[SHARED]["dispatch.py"]
        except UserError as error:
            assert "\n" not in str(error)
            seen["refused"] += 1
            continue
        assert statements(table) <= STATEMENTS
        seen["rendered"] += 1
    assert min(seen.values()) > count // 100  # most are refused: nearly every field of a manifest has one form


def restamped(mutant: bytes, chance: random.Random) -> bytes:
    """A mutant with a stamp that fits, where it is an object; one in ten has its bytes changed after that."""
    try:
        data = json.loads(mutant)
    except (ValueError, RecursionError):
        return mutant
    if not isinstance(data, dict):
        return mutant
    found = stamped(data)
    return byte_mutant(found, chance) if chance.random() < 0.1 else found


def test_mutants_of_a_journal(request: pytest.FixtureRequest, folder: Path) -> None:
    count = 5000 if request.config.getoption("--full") else 300
    digest = "0" * 64
    for mutant in json_mutants({"": {"dispatch.py": [digest]}, "small": {"small/a.py": [digest, digest]}}, count):
        (folder / journal.NAME).write_bytes(mutant)
        for owner, files in read_journal(folder).items():
            for path in (owner or "small", *files):
                assert (
                    ".." not in Path(path).parts and not Path(path).is_absolute() and manifest.below("", path) == path
                )
