"""Bench documents that someone changed: refused in one line, or shown as text and nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from pav2gen.bench.reporting.report import report
from pav2gen.bench.tuning.progress import Journal
from pav2gen.bench.tuning.tune import MEASUREMENT
from pav2gen.cli import main
from pav2gen.errors import UserError
from tests.mutants import json_mutants

#: What must be shown as text.
TAG = "<meta http-equiv=refresh content=0>"


class Tags(HTMLParser):
    """The tags of a page, each with the names of its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, *(name for name, _ in attributes)))


def each_text(value, path=()):
    """The place of each text in a document."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, str):
            yield (*path, key)
        elif isinstance(item, (dict, list)):
            yield from each_text(item, (*path, key))


def kind(path):
    """A place with its indices left out: entries of one list have the same kinds of texts."""
    return re.sub(r"\d+", "n", str(path))


def test_no_text_of_a_document_becomes_markup(request, document, selection, tmp_path):
    """Each text that the report accepts with a tag in it is shown as it is; the others are refused.

    Without --full, one text of each kind.
    """
    file, shown = tmp_path / "bench.json", set()
    file.write_text(json.dumps(document), "utf-8")
    plain = Tags(report(selection, [file])).found
    places = [*each_text(document)]
    for path in places if request.config.getoption("--full") else {kind(path): path for path in places}.values():
        changed = json.loads(json.dumps(document))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = f"x{TAG}\"'"
        file.write_text(json.dumps(changed), "utf-8")
        try:
            page = report(selection, [file])
        except UserError:
            continue
        assert Tags(page).found <= plain and TAG not in page, path
        shown.add(kind(path))
    assert {"('date',)", "('command',)", "('device', 'name')", "('versions', 'torch')"} <= shown


def test_mutants_of_a_document(request, document, selection, tmp_path):
    count = 5000 if request.config.getoption("--full") else 120
    small = {**document, "points": document["points"][:2]}
    file, seen = tmp_path / "bench.json", {"refused": 0, "shown": 0}
    for mutant in json_mutants(json.loads(json.dumps(small)), count):
        file.write_bytes(mutant)
        try:
            page = report(selection, [file])
        except UserError as error:
            assert "\n" not in str(error)
            seen["refused"] += 1
            continue
        assert TAG not in page
        page.encode()
        seen["shown"] += 1
    assert min(seen.values()) > count // 20


def test_mutants_of_a_run_that_was_cut_short(request, tmp_path):
    count = 5000 if request.config.getoption("--full") else 200
    path, head = tmp_path / "tiny.cpu.partial", {"device": "a"}
    entry = ["torch S=2 L=100", {"ms": {"64": [1.0, 2.0], "128": [0.5]}, "wrong": {"256": "is not finite"}}]
    for mutant in json_mutants(entry, count):
        path.write_bytes(json.dumps(head, sort_keys=True).encode() + b"\n" + mutant.replace(b"\n", b" ") + b"\n")
        for name, found in Journal(path, head, MEASUREMENT).entries.items():
            assert isinstance(name, str) and set(found) == {"ms", "wrong"}
            assert all(time > 0 for times in found["ms"].values() for time in times)


@pytest.mark.parametrize("option", ["--seq-len", "--num-seqs"])
@pytest.mark.parametrize("value", ["9" * 5000, "1,,2", "", "0", "1e3", "\uff12", "2147483648"])
def test_numbers_that_are_none(spec_path, option, value):
    done = CliRunner().invoke(main, ["bench", str(spec_path), option, value])
    assert done.exit_code == 2 and len(done.output.splitlines()) == 1
    assert "is not a list of positive whole numbers" in done.output and len(done.output) < 300
    assert not Path("bench.json").exists()
