"""Reads JSON that someone may have edited: parses it, then checks each field.

A reader is a function that checks a value and returns it. If the value has the wrong form, the reader raises
ValueError. A reader of an object or a list calls other readers for the items. If an item is wrong, the error message
begins with the place of the item, as in ``rows[3].test: '5' is not one line of text``.
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

#: Upper bounds: of the absolute value of a number, and of the characters in one line and in a text of many lines.
#: The numbers and texts in real files of pav2gen stay far below these bounds.
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
    """Return the words for ``value`` in an error message: "a list", "an object", or the value itself in quotes."""
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else quoted(value)


def text(value: Any) -> str:
    """Return ``value`` if it is one line of printable text, of at most ``LONGEST_TEXT`` characters."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
        raise ValueError(f"{seen(value)} is not one line of text")
    return value


def prose(value: Any) -> str:
    """Return ``value`` if it is a text that UTF-8 can encode. The text may have many lines."""
    if (
        not isinstance(value, str)
        or len(value) > LONGEST_PROSE
        or any("\ud800" <= letter <= "\udfff" for letter in value)
    ):
        raise ValueError(f"{seen(value)} is not a text")
    return value


def word(value: Any) -> str:
    """Return ``value`` if it is a string of ASCII letters, digits and ``_ . / -``, or an empty string."""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise ValueError(f"{seen(value)} is not a name")
    return value


def digest(value: Any) -> str:
    """Return ``value`` if it is a SHA-256 digest in hexadecimal."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError(f"{seen(value)} is not a sha256")
    return value


def path(value: Any) -> str:
    """Return ``value`` if it is a relative path, on one line, without ``..``."""
    return checked_path(text(value))


def boolean(value: Any) -> bool:
    """Return ``value`` if it is ``true`` or ``false``."""
    if not isinstance(value, bool):
        raise ValueError(f"{seen(value)} is not true or false")
    return value


def whole(value: Any) -> int:
    """Return ``value`` if it is a whole number of at least 0."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{seen(value)} is not a whole number")
    return value


def number(value: Any) -> float:
    """Return ``value`` if it is a finite number."""
    if type(value) not in (int, float) or abs(value) > LARGEST or not math.isfinite(value):
        raise ValueError(f"{seen(value)} is not a number")
    return value  # type: ignore[no-any-return]


def positive(value: Any) -> float:
    """Return ``value`` if it is a finite number of at least 1e-9."""
    if number(value) < 1e-9:
        raise ValueError(f"{seen(value)} is not a number above 0")
    return value  # type: ignore[no-any-return]


def not_negative(value: Any) -> float:
    """Return ``value`` if it is a finite number of at least 0."""
    if number(value) < 0:
        raise ValueError(f"{seen(value)} is below 0")
    return value  # type: ignore[no-any-return]


def positive_whole(value: Any) -> int:
    """Return ``value`` if it is a whole number of at least 1."""
    return whole(positive(value))


def anything(value: Any) -> Any:
    """Return ``value`` without any check. Use this reader for fields that pav2gen ignores."""
    return value


def scalar(value: Any) -> object:
    """Return ``value`` if it is one line of text, a number, true, false or null."""
    return (
        value if value is None or isinstance(value, bool) else text(value) if isinstance(value, str) else number(value)
    )


def optional(read: Reader) -> Reader:
    """Make a reader that accepts null, and the values that ``read`` accepts."""
    return lambda value: None if value is None else read(value)


def constant(expected: object) -> Reader:
    """Make a reader that accepts only the value ``expected``."""

    def read(value: Any) -> object:
        if type(value) is not type(expected) or value != expected:
            raise ValueError(f"{seen(value)} is not {quoted(expected)}")
        return value

    return read


def items(read: Reader) -> Reader:
    """Make a reader of lists that calls ``read`` for each item, and returns a tuple of the results."""

    def read_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{seen(value)} is not a list")
        return tuple(_placed(f"[{index}]", read, item) for index, item in enumerate(value))

    return read_all


def pair(first: Reader, second: Reader) -> Reader:
    """Make a reader of lists of two items: ``first`` reads item 0, ``second`` reads item 1.

    The reader returns a tuple.
    """

    def read(value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError(f"{seen(value)} is not a list of two")
        return _placed("[0]", first, value[0]), _placed("[1]", second, value[1])

    return read


def mapping(key: Reader, read: Reader) -> Reader:
    """Make a reader of JSON objects with fields of any name. The reader returns a dict.

    key: the reader of the names of the fields.
    read: the reader of the values of the fields.
    """

    def read_all(value: Any) -> dict[Any, Any]:
        _check_object(value)
        return {key(name): _placed(f"[{quoted(name)}]", read, item) for name, item in value.items()}

    return read_all


def fields(readers: Mapping[str, Reader], extra: Reader | None = None) -> Reader:
    """Make a reader of JSON objects that have certain fields. The reader returns a dict.

    readers: maps the name of each field that an object must have to the reader of its value.
    extra: the reader of the values of all other fields. None means that an object must not have other fields.
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
    """Return what ``read`` returns for ``value``.

    If ``read`` raises ValueError, put ``place`` in front of the message.
    """
    assert read is not None
    try:
        return read(value)
    except _Placed as error:
        raise _Placed(place + error.place, error.reason) from None
    except ValueError as error:
        raise _Placed(place, str(error)) from None


class _Placed(ValueError):
    """Raised by the reader of a list or an object that contains a wrong value.

    place: the path from the list or the object to the wrong value, such as ``[3].test``.
    reason: what is wrong with the value.
    """

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"{place.lstrip('.')}: {reason}")
