"""INSTALLED.json that someone changed: refused in one line, or a record of the form that an install writes."""

from __future__ import annotations

import json

import pytest

from pav2gen.errors import UserError
from pav2gen.install.record import parse_record
from tests.mutants import FILES, json_mutants

DIGEST = "0" * 64
HUNKS = [["", "# pav2gen: a call\nimport pav2\n"], ["if a:\n", "if use_v1:\n"], ["a\n", "# pav2gen: b\n"]]
EDIT = {"before": DIGEST, "after": DIGEST, "hunks": HUNKS}
RECORD = {
    "schema": 1,
    "generator": "pav2gen 0.1.0",
    "specs": {"small": {"sha256": DIGEST, "kernels": 2}},
    "all_specs": True,
    "min_seq_len": None,
    "tests": False,
    "prebuilt": "",
    "digest": DIGEST,
    "files": {"dispatch.py": DIGEST, "small/MANIFEST.json": DIGEST},
    "edits": {"_custom_ops.py": EDIT},
    "writer": "auto",
    "operators": {"decode": 2, "cache": 1, "extend": 1},
    "complete": True,
    "replaces": None,
}
UNDER_WAY = {**RECORD, "complete": False, "replaces": {name: RECORD[name] for name in RECORD if name != "schema"}}


def read(content: bytes) -> str:
    """What the record is refused with, empty if it is not."""
    try:
        record = parse_record(content, "INSTALLED.json")
    except UserError as error:
        assert "\n" not in str(error) and str(error).endswith("restore the tree from version control")
        return str(error)
    for state in record.states():
        assert all(".." not in path and not path.startswith("/") for path in (*state.files, *state.edits))
        assert all(set(entry) == {"sha256", "kernels"} for entry in state.specs.values())
        assert all(isinstance(text, str) for edit in state.edits.values() for hunk in edit.hunks for text in hunk)
    assert record.content()
    return ""


def test_a_record_as_it_is_written() -> None:
    assert read(json.dumps(RECORD).encode()) == read(json.dumps(UNDER_WAY).encode()) == ""
    assert json.loads(parse_record(json.dumps(UNDER_WAY).encode(), "").content()) == UNDER_WAY


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("specs", []),
        ("files", {"../../victim": DIGEST}),
        ("files", None),
        ("edits", {"/etc/passwd": EDIT}),
        ("edits", {"_custom_ops.py": {**EDIT, "hunks": [["a"]]}}),
        ("replaces", {**UNDER_WAY}),
        ("replaces", []),
        ("min_seq_len", "8192"),
        ("digest", "x\nimport os"),
    ],
)
def test_a_field_of_another_form(field: str, value: object) -> None:
    assert f"({field}" in read(json.dumps({**RECORD, field: value}).encode())


@pytest.mark.parametrize("content", FILES, ids=range(len(FILES)))
def test_any_file_in_its_place(content: bytes) -> None:
    assert read(content) != ""


@pytest.mark.parametrize("record", [RECORD, UNDER_WAY], ids=["complete", "under way"])
def test_mutants(request: pytest.FixtureRequest, record: dict[str, object]) -> None:
    count = 5000 if request.config.getoption("--full") else 300
    answers = [read(mutant) for mutant in json_mutants(record, count)]
    assert count // 20 < answers.count("") < count
