"""Helpers for messages: they quote a value, list choices, or suggest the nearest word for a typo."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Messages cut a quoted value to at most this many characters, so that a message stays one readable line.
LONGEST_QUOTE = 40


def quoted(value: object) -> str:
    """Return ``value`` in single quotes, on one line, cut to at most ``LONGEST_QUOTE`` characters."""
    text = str(value)
    return repr(text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 3]}...")


def one_line(text: str) -> str:
    """Return ``text`` with escapes for line breaks and other characters that are not printable, such as ``\\n``."""
    return text if text.isprintable() else repr(text)[1:-1]


def spelled(value: object) -> str:
    """Return ``value`` as YAML text, such as ``true``, ``512``, ``float16`` or ``null``."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def flow_list(values: Iterable[object]) -> str:
    """Return ``values`` as a YAML list on one line, such as ``[16, 32]``."""
    return f"[{', '.join(map(spelled, values))}]"


def flow_map(fields: Iterable[tuple[str, object]]) -> str:
    """Return ``fields`` as a YAML mapping on one line, such as ``{block_size: 32, dtype: float16}``."""
    return f"{{{', '.join(f'{name}: {spelled(value)}' for name, value in fields)}}}"


def one_of(choices: Iterable[object]) -> str:
    """Return ``choices`` joined by commas and "or", such as ``8, 16 or 32``."""
    *rest, last = map(spelled, choices)
    return f"{', '.join(rest)} or {last}" if rest else last


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the end of a message about an unknown ``word``: the most similar choice, or all choices if none is
    similar.

    choices: the words that the user could write, at least one.
    """
    known = list(choices)
    near = difflib.get_close_matches(word[:LONGEST_QUOTE].lower(), known, n=1)
    return f"did you mean {near[0]}?" if near else f"write {one_of(known)}"
