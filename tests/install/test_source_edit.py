"""Lines put into a text: only these, wherever they go, whatever the text's bytes are like."""

from __future__ import annotations

import ast
import difflib
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.errors import UserError
from pav2gen.install.editing.hunks import hunks, reverse
from pav2gen.install.editing.source_edit import Insertion, SourceFile, insert_lines

TEXT = dedent('''\
    """A module."""
    import torch


    def first(a,
              b):   # odd
        """What it does."""
        return a


    class C:
        @staticmethod
        def method(x):
            # why

            # this test
            if (x):
                pass
            elif x > 1 : y = 2
            else:
                return 3
    ''')


def at(text: str, line: str) -> int:
    return 1 + next(i for i, each in enumerate(text.split("\n")) if line in each)


def inserted(
    content: bytes, line: str, place: str, lines: str = "import gone\ncall(\n    a,\n)\n", test: str = ""
) -> str:
    """The text with ``lines`` put at the function or ``if`` of ``line``, whose test becomes the name ``test``."""
    source = SourceFile.parse(content, "f.py")
    number = at(source.text, line)
    edited = insert_lines(source, [Insertion(number, place, "ours", lines)], {number: test} if test else {})
    assert edited.startswith(source.bom)
    return edited[len(source.bom) :].decode()


def added(before: str, after: str) -> list[str]:
    """The lines that were put in; none may have gone."""
    difference = list(difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True)))
    assert not [line for line in difference if line.startswith(("-", "?"))]
    return [line[2:] for line in difference if line.startswith("+")]


def test_lines_go_behind_a_docstring_to_the_start() -> None:
    after = inserted(TEXT.encode(), "def first", "start")
    assert added(TEXT, after) == ["    # ours\n", "    import gone\n", "    call(\n", "        a,\n", "    )\n"]
    assert '    """What it does."""\n    # ours\n' in after


def test_lines_go_to_the_end() -> None:
    after = inserted(TEXT.encode(), "def first", "end", "x\n")
    assert added(TEXT, after) == ["    # ours\n", "    x\n"]
    assert "    return a\n    # ours\n    x\n" in after


def test_lines_go_between_the_blank_lines_and_the_comment_of_an_if() -> None:
    text = TEXT.replace("        # why\n", "")
    after = inserted(text.encode(), "if (x)", "before", "x\n")
    assert added(text, after) == ["        # ours\n", "        x\n"]
    assert "def method(x):\n\n        # ours\n        x\n        # this test\n        if (x):" in after


def test_a_test_is_replaced_and_told() -> None:
    after = inserted(TEXT.encode(), "if (x)", "before", "use = choose(TEST, k=1)\n", test="use")
    assert "use = choose((x), k=1)\n" in after
    assert "        if use:\n            pass\n        elif x > 1 : y = 2\n" in after


@pytest.mark.parametrize("head", ["if(x):", "if   x:", "if x :"])
def test_a_replaced_test_stands_apart_from_its_if(head: str) -> None:
    after = inserted(TEXT.replace("if (x):", head).encode(), head, "before", "use = TEST\n", test="use")
    assert ast.parse(after)
    assert "if use" in after


def test_a_test_that_is_the_name_already_stays_as_it_is() -> None:
    text = TEXT.replace("if (x):", "if   use :")
    after = inserted(text.encode(), "if   use", "before", "use = TEST\n", test="use")
    assert added(text, after) == ["        # ours\n", "        use = use\n"]


def test_a_body_on_the_line_of_its_def_becomes_a_block() -> None:
    text = "def f(a): raise X  # so\n\nx = 1\n"
    after = inserted(text.encode(), "def f", "start", "if g(a):\n    return\n")
    assert after == "def f(a):\n    # ours\n    if g(a):\n        return\n    raise X  # so\n\nx = 1\n"
    assert reverse(after, hunks(text, after)) == text


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("tabs", [False, True])
@pytest.mark.parametrize("place", ["start", "end"])
def test_the_bytes_around_are_kept(bom: bytes, end: str, tabs: bool, place: str) -> None:
    text = (TEXT.replace("    ", "\t") if tabs else TEXT).replace("\n", end)
    after = inserted(bom + text.encode(), "def first", place)
    new = added(text, after)
    assert len(new) == 5
    assert all(line.endswith(end) and line.startswith("\t" if tabs else "    ") for line in new)


def test_line_ends_of_two_kinds_are_kept() -> None:
    text = TEXT.replace("return a\n", "return a\r\n")
    assert len(added(text, inserted(text.encode(), "def first", "start"))) == 5


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"x = '\xff'\n", "f.py: is not UTF-8 (byte 5)"),
        (b"def f(:\n", "f.py: is not Python (invalid syntax)"),
        (b"x = 1\0\n", "f.py: is not Python ("),
    ],
)
def test_what_is_no_source_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        SourceFile.parse(content, "f.py")
    assert str(refusal.value).startswith(sentence)


def test_a_text_that_libcst_would_change_is_refused() -> None:
    source = SourceFile.parse(b"def f():\n    a = 1\n\x0c    pass\n", "f.py")
    with pytest.raises(UserError, match=r"f\.py: has text that libcst would change; nothing was edited"):
        insert_lines(source, [Insertion(1, "start", "ours", "x\n")])


def test_what_libcst_would_change_elsewhere_stays() -> None:
    text = "x = 1\n\x0cy = 2\n\ndef f():\n    pass\n"
    assert inserted(text.encode(), "def f", "start", "x\n") == text.replace("    pass", "    # ours\n    x\n    pass")


def test_a_place_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UserError, match=r"f\.py: has text that libcst would change"):
        insert_lines(SourceFile.parse(TEXT.encode(), "f.py"), [Insertion(2, "start", "ours", "x\n")])


def test_insertions_into_several_statements_are_all_made() -> None:
    text = "@a\n@b\ndef f(): pass\n\ntry:\n    x\nexcept E:\n    def f():\n        pass\n"
    source = SourceFile.parse(text.encode(), "f.py")
    lines = [3, 8]
    edited = insert_lines(source, [Insertion(line, "start", "ours", "y\n") for line in lines]).decode()
    assert edited == (
        "@a\n@b\ndef f():\n    # ours\n    y\n    pass\n\n"
        "try:\n    x\nexcept E:\n    def f():\n        # ours\n        y\n        pass\n"
    )


line = st.sampled_from(["\n", "a\n", "b\n", "  a\n", "c\r\n"])


@given(st.lists(st.tuples(line, st.booleans()), max_size=12))
def test_insertions_anywhere_are_taken_back(lines: list[tuple[str, bool]]) -> None:
    before = "".join(each for each, _ in lines)
    after = "".join(f"ours {i}\n  too\n{each}" if chosen else each for i, (each, chosen) in enumerate(lines))
    assert reverse(after, hunks(before, after)) == before


def test_a_line_that_is_not_unique_is_told_apart_by_the_lines_before() -> None:
    before, after = "a\nx\nb\nif c:\nd\nx\n", "a\nx\nb\nx\nd\nx\n"
    assert hunks(before, after) == (("b\nif c:\n", "b\nx\n"),)
    assert reverse(after, hunks(before, after)) == before


@given(st.lists(line, max_size=10), st.lists(line, max_size=10), st.lists(line, max_size=4), st.lists(line, max_size=4))
def test_an_insertion_is_taken_back_also_after_other_edits(head, tail, above, below) -> None:  # type: ignore[no-untyped-def]
    before = "".join([*head, *tail])
    after = "".join([*head, "ours 1\n", "ours 2\n", *tail])
    (hunk,) = hunks(before, after)
    assert hunk == ("", "ours 1\nours 2\n")
    assert reverse("".join(above) + after + "".join(below), [hunk]) == "".join(above) + before + "".join(below)
    assert reverse(after.replace("ours 2", "mine"), [hunk]) is None
    assert reverse(after + after, [hunk]) is None
