"""The class ``Node``: a value in a YAML file, with its place in the file.

The methods of ``Node`` convert the value to Python types.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import yaml

from pav2gen.errors import UserError
from pav2gen.wording import LONGEST_QUOTE, did_you_mean, one_line, quoted, spelled

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")
_NOT_FINITE = re.compile(r"[-+]?\.?(inf|infinity|nan)", re.I)
_RESOLVER: Any = yaml.resolver.Resolver()
_TYPES = {"bool": "a boolean", "int": "a whole number", "float": "a float", "null": "null", "timestamp": "a date"}


@dataclass(frozen=True)
class Node:
    """A value in a YAML file, with its place in the file.

    line: the line of the value, from 1. A value in a mapping has the line of its key.
    name: the dotted path from the root of the file to the value, such as ``axes.head_size``.
    value: the text of a scalar, the items of a list as a tuple, or the fields of a mapping as a dict.
    plain: whether the value is a scalar without quotes.
    column: the column where the text of a scalar begins, from 1. The column is 0 if the file writes the text with
    escapes, or if the text is not on ``line`` alone.
    """

    file: str
    line: int
    name: str
    value: str | tuple[Node, ...] | dict[str, Node]
    plain: bool = False
    column: int = 0

    @property
    def title(self) -> str:
        """The name of the value in messages: the value's dotted path, or "the spec" for the root of the file."""
        return self.name or "the spec"

    @property
    def where(self) -> str:
        """The place of the value as ``file:line``."""
        return f"{self.file}:{self.line}"

    @property
    def yaml_type(self) -> str:
        """The type that YAML 1.1 gives to the value: ``str``, ``bool``, ``int``, ``float``, ``null``, ``timestamp``,
        ``map`` or ``seq``.
        """
        if not isinstance(self.value, str):
            return "map" if isinstance(self.value, dict) else "seq"
        if not self.plain:
            return "str"
        tag: str = _RESOLVER.resolve(yaml.ScalarNode, self.value, (True, False))
        return tag.rpartition(":")[2]

    def fail(self, message: str) -> UserError:
        """Return a UserError with ``message`` and the ``file:line`` of this value."""
        return UserError(message, self.where)

    def fail_at(self, column: int, message: str) -> UserError:
        """Return a UserError with ``message`` for a mistake in the text of this scalar.

        The error gives the column in the file if the file's column is known, and otherwise the column in the text.

        column: the column of the mistake in the text, from 1.
        """
        if self.column:
            return UserError(message, f"{self.where}:{self.column + column - 1}")
        return self.fail(f"{message} (at column {column} of the text)")

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Return a context manager that adds the ``file:line`` of this value to a UserError without a place."""
        try:
            yield
        except UserError as error:
            raise error if error.where else self.fail(error.message) from None

    def fields(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Node]:
        """Return the fields of this mapping, by key.

        Raises UserError if the value is not a mapping, if a key of ``required`` is missing, or if a key is in neither
        ``required`` nor ``optional``.
        """
        if not isinstance(self.value, dict):
            raise self.fail(f"{self.title} must be a mapping of keys to values, not {self._seen()}")
        for key, child in self.value.items():
            if key not in required and key not in optional:
                hint = did_you_mean(key, (*required, *optional))
                raise child.fail(f"unknown key {quoted(key)} in {self.title}; {hint}")
        for key in required:
            if key not in self.value:
                raise self.fail(f"{self.title} lacks the key '{key}'; add it")
        return dict(self.value)

    def items(self) -> tuple[Node, ...]:
        """Return the items of this list. A scalar counts as a list of one item.

        Raises UserError for a mapping, an empty list, null, and a text in quotes that looks like a list.
        """
        if isinstance(self.value, dict):
            raise self.fail(f"{self.title} must be a value or a list of values, not a mapping")
        if self.value == () or self.yaml_type == "null":
            raise self.fail(f"{self.title} is empty; give it at least one value, or remove the key")
        if isinstance(self.value, str) and not self.plain and re.fullmatch(r"\s*\[.*\]\s*", self.value, re.S):
            works = f"write the list without quotes: {one_line(self.value.strip())}"
            raise self.fail(f"{self.title} is a text in quotes; {works}")
        return self.value if isinstance(self.value, tuple) else (self,)

    def integer(self, low: int = -(10**18), high: int = 10**18) -> int:
        """Return the value as a whole number from ``low`` to ``high``.

        Raises UserError unless the value is a number in this range, in plain decimal digits.
        """
        if not (isinstance(self.value, str) and self.plain and _INTEGER.fullmatch(self.value)):
            raise self.fail(f"{self.title} must be a whole number, not {self._seen(_INTEGER)}")
        if not low <= int(self.value) <= high:
            raise self.fail(f"{self.title} must be from {low} to {high}, not {self.value}")
        return int(self.value)

    def number(self) -> float:
        """Return the value as a float.

        Raises UserError unless the value is a finite number in plain decimal notation.
        """
        if isinstance(self.value, str) and self.plain:
            if _DECIMAL.fullmatch(self.value):
                return float(self.value)
            if _NOT_FINITE.fullmatch(self.value):
                raise self.fail(f"{self.title} must be a finite number, not {quoted(self.value)}")
        raise self.fail(f"{self.title} must be a number, not {self._seen(_DECIMAL)}")

    def boolean(self) -> bool:
        """Return the value as a bool. Raises UserError unless the value is spelled exactly ``true`` or ``false``."""
        if not (self.plain and self.value in ("true", "false")):
            raise self.fail(f"{self.title} must be true or false, not {self._seen()}")
        return self.value == "true"

    def text(self) -> str:
        """Return the value as one line of text, without spaces at its ends.

        Raises UserError for any other value, and for a text without quotes that YAML reads as another type, such as
        ``yes``.
        """
        if not isinstance(self.value, str) or (self.plain and not self.value):
            raise self.fail(f"{self.title} must be a text, not {self._seen()}")
        if self.yaml_type != "str":
            kind = _TYPES.get(self.yaml_type, self.yaml_type)
            read = f"YAML reads {quoted(self.value)} as {kind}"
            raise self.fail(f"{self.title} must be a text, and {read}; put it in quotes")
        line = self.value.strip()
        if not line or not line.isprintable():
            raise self.fail(f"{self.title} must be one line of printable text, not {quoted(self.value)}")
        return line

    def choice(self, choices: Collection[str]) -> str:
        """Return the value as one of the texts ``choices``. Raises UserError for any other value."""
        word = self.text()
        if word not in choices:
            raise self.fail(f"{self.title} cannot be {quoted(word)}; {did_you_mean(word, choices)}")
        return word

    def is_null(self) -> bool:
        """Return whether YAML reads the value as null: ``null``, ``~`` or nothing at all."""
        return self.yaml_type == "null"

    def _seen(self, number: re.Pattern[str] | None = None) -> str:
        """Return a description of the value, for a message that the value has the wrong type.

        number: the pattern of a valid number, or None if no number is expected. For a number in another notation, the
        description says how to write the number.
        """
        if not isinstance(self.value, str):
            return "a mapping" if isinstance(self.value, dict) else "a list"
        if not self.plain:
            return f"a text in quotes, {quoted(self.value)}"
        if number and (digits := _plain_digits(self.value, self.yaml_type)) and number.fullmatch(digits):
            reads = ", which YAML 1.1 reads as a text" if self.yaml_type == "str" else ""
            return f"{quoted(self.value)}{reads}: write {digits}"
        return f"{quoted(self.value)}{_surprise(self.value, self.yaml_type)}" if self.value else "nothing"


def _plain_digits(text: str, yaml_type: str) -> str:
    """Return the number ``text`` without an exponent, such as ``100`` for ``1e2``.

    The result is empty if ``text`` is an integer in YAML 1.1, or is not a finite number.
    """
    if yaml_type not in ("str", "float") or text.isdigit() or len(text) > LONGEST_QUOTE:
        return ""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return ""
    return f"{value:f}" if value.is_finite() and abs(value.adjusted()) < LONGEST_QUOTE else ""


def _surprise(text: str, yaml_type: str) -> str:
    """Return the end of an error message about ``text``, an unquoted scalar: how YAML 1.1 reads ``text`` and how to
    write it.
    """
    if yaml_type == "bool" and text not in ("true", "false"):
        meant = spelled(text.lower() in ("yes", "on", "true"))
        return f", which YAML 1.1 reads as {meant}: write {meant}"
    if yaml_type == "int" and not _INTEGER.fullmatch(text):
        return f", which {_oddity(text)}: write plain decimal digits"
    if text.startswith("0") and text.isdigit():
        return ": write it without the leading zero"
    return f" ({_TYPES[yaml_type]})" if yaml_type in _TYPES else ""


def _oddity(text: str) -> str:
    """Return a phrase that says how YAML 1.1 reads ``text``, an integer in an unusual notation.

    Unusual notations are, for example, ``1:30``, ``0x1f``, ``010`` and ``1_000``.
    """
    digits = text.lstrip("+-").replace("_", "")
    if len(digits) > 18:
        return "is too large"
    if ":" in digits:
        return "YAML 1.1 reads in base 60"
    if digits[:2] in ("0b", "0x"):
        return f"YAML reads as {int(digits[2:] or '0', 2 if digits[1] == 'b' else 16)}"
    return f"YAML 1.1 reads as {int(digits, 8 if digits.startswith('0') else 10)}"
