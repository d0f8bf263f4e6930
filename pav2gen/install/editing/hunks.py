"""Finds the lines that an install changed in a file of vLLM, and undoes these changes.

A hunk is one block of consecutive changed lines. A hunk can be undone even if someone edits other lines of the file
later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

#: The start of the comment that an install puts above every block of lines that it inserts into a file.
MARKER = "# pav2gen: "

#: An install makes only one kind of change without the comment ``MARKER``: it replaces the condition of an ``if`` or
#: ``elif`` with ``use_v1``. The pattern matches the old line and the new line, with a NUL character between them.
TEST_CHANGE = re.compile(r"(\s*(?:el)?if)\b[^\n]*:[^\n]*\n\0\1 use_v1:[^\n]*\n")


class Hunk(NamedTuple):
    """One changed block of a file.

    old: the lines that an install removed.
    new: the lines that the install put in the place of ``old``.
    """

    old: str
    new: str


def is_ours(hunk: Hunk) -> bool:
    """Whether an install can have made the change ``hunk``.

    An install only inserts lines below a comment that begins with ``MARKER``, and replaces the conditions of ``if``
    statements with the name ``use_v1``.
    """
    return MARKER in hunk.new or bool(TEST_CHANGE.fullmatch(f"{hunk.old}\0{hunk.new}"))


def hunks(before: str, after: str) -> tuple[Hunk, ...]:
    """Return the changed blocks of a file, that is, the hunks that turn the text ``before`` into the text ``after``.

    The new lines of each hunk occur exactly once in ``after``, so that ``reverse`` finds them.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    found = []
    for i1, i2, j1, j2 in _differences(old, new):
        while after.count("".join(new[j1:j2])) != 1 and i1 and j1:  # include lines before it until it is unique
            i1, j1 = i1 - 1, j1 - 1
        found.append((i1, i2, j1, j2))
    made = [Hunk("".join(old[i1:i2]), "".join(new[j1:j2])) for i1, i2, j1, j2 in found]
    if not all(map(is_ours, made)):  # the matcher has split one insertion at a line that occurs in both texts
        i1, j1, i2, j2 = found[0][0], found[0][2], found[-1][1], found[-1][3]
        made = [Hunk("".join(old[i1:i2]), "".join(new[j1:j2]))]
    return tuple(made)


def _differences(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the ranges of lines that differ, as (start in ``old``, end in ``old``, start in ``new``, end in ``new``).

    As in slices, lines are numbered from 0, and an end is not part of its range.
    """
    # The equal lines at both ends are skipped first, because SequenceMatcher is slow on long texts.
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - head) if old[-1 - i] != new[-1 - i]), shorter - head)
    matcher = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            yield head + i1, head + i2, head + j1, head + j2


def reverse(text: str, applied: Sequence[Hunk]) -> str | None:
    """Undo the hunks ``applied`` in ``text``, and return the result.

    Returns None if the new lines of a hunk do not occur exactly once in the text.
    """
    for hunk in applied:
        if text.count(hunk.new) != 1:
            return None
        text = text.replace(hunk.new, hunk.old)
    return text
