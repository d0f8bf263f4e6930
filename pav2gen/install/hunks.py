"""What an edit changed in a text, line by line, kept so that it can be taken back: also after other edits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple


class Hunk(NamedTuple):
    """Lines that an edit took out, and the lines that it put in their place."""

    old: str
    new: str


def hunks(before: str, after: str) -> tuple[Hunk, ...]:
    """What makes ``after`` out of ``before``. The new lines of each hunk stand once in ``after``."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    found = []
    for i1, i2, j1, j2 in _differences(old, new):
        while after.count("".join(new[j1:j2])) != 1 and i1 and j1:  # the line before tells them apart
            i1, j1 = i1 - 1, j1 - 1
        found.append(Hunk("".join(old[i1:i2]), "".join(new[j1:j2])))
    return tuple(found)


def _differences(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """The ranges that differ. What both begin and end with is left out first: the matcher is slow on long texts."""
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - head) if old[-1 - i] != new[-1 - i]), shorter - head)
    matcher = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            yield head + i1, head + i2, head + j1, head + j2


def reverse(text: str, applied: Sequence[Hunk]) -> str | None:
    """``text`` with the hunks taken back, None where one does not stand in it exactly once."""
    for hunk in applied:
        if text.count(hunk.new) != 1:
            return None
        text = text.replace(hunk.new, hunk.old)
    return text
