"""Text is read and written in an encoding that the source names, so that no locale has a say in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

#: What reads or writes text, and the position of its mode, None where it is always text.
READERS = {"read_text": None, "write_text": None, "open": 1, "fdopen": 1, "TemporaryFile": 0, "NamedTemporaryFile": 0}

#: What runs a program, and reads its output as text if one of these is given.
RUNNERS = {"run", "Popen", "check_output", "check_call", "call"}
AS_TEXT = {"text", "universal_newlines"}

#: Modules with functions of these names that have nothing to do with text.
OTHERS = {"os", "webbrowser", "zipfile"}

SOURCES = sorted(
    path
    for folder in ("pav2gen", "benches")
    for path in (REPOSITORY / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)


def without_encoding(tree: ast.AST) -> list[int]:
    """The lines of the calls that leave the encoding to the locale."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and leaves_it_open(node)]


def leaves_it_open(call: ast.Call) -> bool:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    name, owner = called(call.func)
    if "encoding" in keywords or None in keywords:
        return False
    if name in RUNNERS and owner == "subprocess":
        return any(name in keywords for name in AS_TEXT)
    if name not in READERS or (owner in OTHERS and name != "fdopen"):
        return False
    position = READERS[name]
    if position is None:
        return not call.args[int(name == "write_text") :]  # the encoding comes after the text
    if name == "open" and owner:
        position = 0  # path.open(mode)
    mode = keywords.get("mode") or (call.args[position] if len(call.args) > position else None)
    default = "w+b" if name.endswith("TemporaryFile") else "r"
    return "b" not in (mode.value if isinstance(mode, ast.Constant) else default if mode is None else "")


def called(function: ast.expr) -> tuple[str, str]:
    """The name of a function that is called, and of what it belongs to."""
    if isinstance(function, ast.Attribute):
        return function.attr, getattr(function.value, "id", "value")
    return getattr(function, "id", ""), ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_text_file_has_an_encoding(path: Path) -> None:
    assert without_encoding(ast.parse(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.read_text(encoding='utf-8')", False),
        ("path.write_text(text)", True),
        ("path.write_text(text, 'utf-8')", False),
        ("open(path)", True),
        ("open(path, 'w')", True),
        ("open(path, 'rb')", False),
        ("open(path, mode='wb')", False),
        ("path.open()", True),
        ("path.open('ab')", False),
        ("os.open(path, 0)", False),
        ("os.fdopen(handle, 'w')", True),
        ("os.fdopen(handle, 'wb')", False),
        ("tempfile.NamedTemporaryFile()", False),
        ("tempfile.NamedTemporaryFile('w')", True),
        ("subprocess.run(command, text=True)", True),
        ("subprocess.run(command, text=True, encoding='utf-8')", False),
        ("subprocess.run(command, capture_output=True)", False),
    ],
)
def test_what_counts(source: str, found: bool) -> None:
    assert bool(without_encoding(ast.parse(source))) == found
