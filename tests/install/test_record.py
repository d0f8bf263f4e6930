"""INSTALLED.json as somebody else may write it: a record is read, or refused in one line."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from pav2gen.errors import UserError
from pav2gen.install.editing.hunks import Hunk, hunks, is_ours
from pav2gen.install.record import Record, RecordedEdit, parse_record

RECORD = Record(
    generator="pav2gen 0",
    specs={"alpha": {"sha256": "a" * 64, "kernels": 2}},
    all_specs=True,
    min_seq_len=None,
    tests=False,
    prebuilt="",
    digest="d" * 64,
    files={"hooks.py": "e" * 64, "runtime/op.py": "f" * 64},
    edits={"_custom_ops.py": RecordedEdit("b" * 64, "c" * 64, (Hunk("", "    # pav2gen: ours\n    f()\n"),))},
)
#: A value of each type that JSON has.
VALUES: tuple[Any, ...] = (None, True, 7, 1.5, "x", "../x", [], [1], {}, {"x": []})


def test_what_is_written_is_read() -> None:
    for record in (RECORD, RECORD.under_way(RECORD), RECORD.under_way(None)):
        assert parse_record(record.content(), "here") == record


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything below a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, entry in items for place in places(entry, (*path, key)))]


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of ``data`` with another value at a path."""
    data = copy.deepcopy(data)
    if not path:
        return value
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return data


def outcome(data: Any) -> str:
    """What became of a record: "read", or the one line that it is refused with."""
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    try:
        assert isinstance(parse_record(content, "there"), Record)
    except UserError as error:
        assert str(error).startswith("there: is not as pav2gen install wrote it (")
        assert "\n" not in str(error)
        return str(error)
    return "read"


WHOLE = json.loads(RECORD.under_way(RECORD).content())


@pytest.mark.parametrize("path", [path for path in places(WHOLE) if path[:1] != ("replaces",)])
def test_a_value_of_another_type_is_refused(path: tuple[Any, ...]) -> None:
    given = WHOLE
    for key in path:
        given = given[key]
    for value in VALUES:
        optional = path == ("min_seq_len",) and value == 7
        empty = path in (("specs",), ("files",), ("edits",)) and value == {}
        hunkless = path == ("edits", "_custom_ops.py", "hunks") and value == []
        if type(value) is not type(given) and not (optional or empty or hunkless):
            assert outcome(changed(WHOLE, path, value)) != "read", (path, value)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("specs",), [], "specs: a list is not an object"),
        (("tests",), 1, "tests: '1' is not true or false"),
        (("files", "../../../_custom_ops.py"), "0" * 64, "not a relative path below the package"),
        (("edits", "/etc/passwd"), WHOLE["edits"]["_custom_ops.py"], "not a relative path below the package"),
        (
            ("edits", "_custom_ops.py", "hunks", 0),
            ["evil\n", "victim\n"],
            "it would remove lines that no install inserts",
        ),
        (("edits", "_custom_ops.py", "hunks", 0), ["a"], "a list is not a pair of texts"),
        (("schema",), 9, "schema: '9' is not '1'"),
    ],
)
def test_the_reason_is_said(path: tuple[Any, ...], value: Any, reason: str) -> None:
    assert reason in outcome(changed(WHOLE, path, value))


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"specs":' * 100_000, b"\xff", b"", b"null", b"1" * 10_000])
def test_a_file_that_is_no_record_is_refused(content: bytes) -> None:
    assert outcome(content) != "read"


def test_mutants_are_read_or_refused(request: pytest.FixtureRequest) -> None:
    chance = random.Random(7)
    for _ in range(5000 if request.config.getoption("--full", default=False) else 300):
        data = WHOLE
        for _ in range(chance.randint(1, 3)):
            data = changed(data, chance.choice(places(data)), chance.choice([*VALUES, WHOLE, "pav2gen: \n"]))
        outcome(data)
        content = bytearray(json.dumps(WHOLE).encode())
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        outcome(bytes(content))


def test_the_hunks_of_an_install_are_ours_and_others_are_not() -> None:
    before = "def f():\n    if a and b:\n        one()\n    elif c:\n        two()\n"
    after = (
        "def f():\n    # pav2gen: a choice\n    use_v1 = choose(\n        c,\n    )\n"
        "    if a and b:\n        one()\n    elif use_v1:\n        two()\n"
    )
    made = hunks(before, after)
    assert len(made) == 2
    assert all(map(is_ours, made))
    for old, new in (("    if c:\n", "    if d:\n"), ("", "    x = 1\n"), ("    if c:\n", "        if use_v1:\n")):
        assert not is_ours(Hunk(old, new))


def test_an_insertion_that_repeats_a_line_of_the_text_is_one_hunk() -> None:
    """The matcher takes the repeated line for the tree's own, and would leave a part of the insertion unmarked."""
    before = "def f(\n    a,\n):\n    g(\n        a,\n    )\n\n\ndef h():\n    pass\n"
    after = before.replace("):\n", "):\n    # pav2gen: ours\n    k(\n        a,\n    )\n    g(\n        b,\n    )\n", 1)
    made = hunks(before, after)
    assert all(map(is_ours, made))
    text = after
    for hunk in made:
        assert text.count(hunk.new) == 1
        text = text.replace(hunk.new, hunk.old)
    assert text == before
