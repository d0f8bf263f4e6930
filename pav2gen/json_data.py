"""Reads JSON that someone may have edited: parses it, then checks each field.

A reader is a function that checks a value and returns it. If the value has the wrong form, the reader raises
ValueError. Readers of objects and lists are made from the readers of their items. The messages of such readers begin
with the place, as in ``rows[3].test: '5' is not one line of text``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pav2gen.files import checked_path
from pav2gen.wording import quoted

Reader = Callable[[Any], Any]

#: Upper bounds of numbers and of text lengths. Real files of pav2gen stay far below them.
LARGEST, LONGEST_TEXT, LONGEST_PROSE = 10**18, 4096, 1 << 20

_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z0-9_./-]{0,256}")


def parse_json(content: bytes) -> Any:
    """Return the value that the JSON text ``content`` describes.

    Raises ValueError if ``content`` is not UTF-8, not JSON, or nested too deep.
    """
    try:
        return json.loads(content.decode(), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def seen(value: Any) -> str:
    """Return ``value`` in quotes, for messages. For a list or an object, return "a list" or "an object"."""
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else quoted(value)


def text(value: Any) -> str:
    """Read one line of printable text."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
        raise ValueError(f"{seen(value)} is not one line of text")
    return value


def prose(value: Any) -> str:
    """Read a text of any number of lines that UTF-8 can encode."""
    if (
        not isinstance(value, str)
        or len(value) > LONGEST_PROSE
        or any("\ud800" <= letter <= "\udfff" for letter in value)
    ):
        raise ValueError(f"{seen(value)} is not a text")
    return value


def word(value: Any) -> str:
    """Read a name or a path of ASCII letters, digits and ``_ . / -``. The text may be empty."""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise ValueError(f"{seen(value)} is not a name")
    return value


def digest(value: Any) -> str:
    """Read a SHA-256 digest in hexadecimal."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError(f"{seen(value)} is not a sha256")
    return value


def path(value: Any) -> str:
    """Read a relative path, on one line, that does not lead out of its folder."""
    return checked_path(text(value))


def boolean(value: Any) -> bool:
    """Read ``true`` or ``false``."""
    if not isinstance(value, bool):
        raise ValueError(f"{seen(value)} is not true or false")
    return value


def whole(value: Any) -> int:
    """Read a whole number of at least 0."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{seen(value)} is not a whole number")
    return value


def number(value: Any) -> float:
    """Read a finite number."""
    if type(value) not in (int, float) or abs(value) > LARGEST or not math.isfinite(value):
        raise ValueError(f"{seen(value)} is not a number")
    return value  # type: ignore[no-any-return]


def positive(value: Any) -> float:
    """Read a finite number of at least 1e-9."""
    if number(value) < 1e-9:
        raise ValueError(f"{seen(value)} is not a number above 0")
    return value  # type: ignore[no-any-return]


def not_negative(value: Any) -> float:
    """Read a finite number of at least 0."""
    if number(value) < 0:
        raise ValueError(f"{seen(value)} is below 0")
    return value  # type: ignore[no-any-return]


def positive_whole(value: Any) -> int:
    """Read a whole number of at least 1."""
    return whole(positive(value))


def anything(value: Any) -> Any:
    """Read a value of any form. Fields that pav2gen ignores have this reader."""
    return value


def scalar(value: Any) -> object:
    """Read a text, a number, true, false or null."""
    return (
        value if value is None or isinstance(value, bool) else text(value) if isinstance(value, str) else number(value)
    )


def optional(read: Reader) -> Reader:
    """Make a reader of null, or of a value that ``read`` accepts."""
    return lambda value: None if value is None else read(value)


def constant(expected: object) -> Reader:
    """Make a reader that accepts only the value ``expected``."""

    def read(value: Any) -> object:
        if type(value) is not type(expected) or value != expected:
            raise ValueError(f"{seen(value)} is not {quoted(expected)}")
        return value

    return read


def items(read: Reader) -> Reader:
    """Make a reader of a list, with the reader ``read`` for each item. The reader returns a tuple."""

    def read_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{seen(value)} is not a list")
        return tuple(_placed(f"[{index}]", read, item) for index, item in enumerate(value))

    return read_all


def pair(first: Reader, second: Reader) -> Reader:
    """Make a reader of a list of two items. The reader returns a tuple."""

    def read(value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError(f"{seen(value)} is not a list of two")
        return _placed("[0]", first, value[0]), _placed("[1]", second, value[1])

    return read


def mapping(key: Reader, read: Reader) -> Reader:
    """Make a reader of an object with any number of fields.

    ``key`` reads the names of the fields, and ``read`` reads the values.
    """

    def read_all(value: Any) -> dict[Any, Any]:
        _check_object(value)
        return {key(name): _placed(f"[{quoted(name)}]", read, item) for name, item in value.items()}

    return read_all


def fields(readers: Mapping[str, Reader], extra: Reader | None = None) -> Reader:
    """Make a reader of an object that has all fields of ``readers``, which maps names to readers.

    extra: the reader of all other fields. None means that the object must not have other fields.
    """

    def read_all(value: Any) -> dict[str, Any]:
        _check_object(value)
        for name in sorted(readers.keys() - value.keys()):
            raise ValueError(f"{name} is missing")
        for name in sorted(value.keys() - readers.keys()):
            if extra is None:
                raise ValueError(f"{quoted(name)} is not known")
        return {name: _placed(f".{name}", readers.get(name, extra), item) for name, item in value.items()}

    return read_all


def _check_object(value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{seen(value)} is not an object")


def _placed(place: str, read: Reader | None, value: Any) -> Any:
    """Call ``read`` with ``value``. If ``read`` raises ValueError, put ``place`` in front of the message."""
    assert read is not None
    try:
        return read(value)
    except _Placed as error:
        raise _Placed(place + error.place, error.reason) from None
    except ValueError as error:
        raise _Placed(place, str(error)) from None


class _Placed(ValueError):
    """An error message, and its place relative to the value that was read."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"{place.lstrip('.')}: {reason}")
