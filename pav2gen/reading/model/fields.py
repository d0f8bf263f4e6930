"""Reads values from a config.json. The default for the model's type replaces a missing value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pav2gen.errors import UserError
from pav2gen.reading.model.defaults import TEXT_TYPES, defaults_of
from pav2gen.wording import LONGEST_QUOTE, quoted, spelled

#: Keys that have the config of the language model as their value, in models of several parts, such as text and images.
#: An outer key comes before a key nested in it.
PARTS = ("thinker_config", "text_config", "llm_config", "language_config")

#: A number must be less than this, which is far beyond the values of any model.
LARGEST_NUMBER = 1e300


class Fields:
    """The values that a config.json states about a language model.

    A model may have several parts, such as text and images. In such a model, the config of the language model is nested
    in the config of the whole model. A key is looked up first in the language model's own config, then in the defaults
    of the model type, then in the config of the whole model.

    own: the language model's own config.
    outer: the other values of the whole model's config, or an empty dict if no config is nested.
    looked_up: the keys that were looked up so far.
    defaulted: the values that were taken from the defaults, by key.
    """

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        outer, own = split(config)
        self.file = file
        self.own = own
        self.outer = outer
        self.defaults: dict[str, Any] = {}
        self.looked_up: set[str] = set()
        self.defaulted: dict[str, Any] = {}
        own_type = self.text("model_type") if own.get("model_type") else ""
        outer_type = str(outer.get("model_type") or "")
        self.model_type = own_type or TEXT_TYPES.get(outer_type, outer_type)
        self.defaults = defaults_of(self.model_type)

    def get(self, *keys: str) -> Any:
        """Return the first value other than null that is found for one of ``keys``, or None.

        First all ``keys`` are looked up in the language model's own config, then in the defaults, then in the config of
        the whole model. The defaults are skipped if the language model's own config has null for one of ``keys``.
        """
        self.looked_up.update(keys)
        nulls = any(key in self.own for key in keys)
        for source in (self.own, *([] if nulls else [self.defaults]), self.outer):
            for key in keys:
                if source.get(key) is not None:
                    if source is self.defaults:
                        self.defaulted[key] = source[key]
                    return source[key]
        return None

    def given(self, key: str) -> bool:
        """Return whether the config.json itself, apart from defaults, has a value other than null for ``key``."""
        return self.own.get(key) is not None or self.outer.get(key) is not None

    def count(self, *keys: str) -> int:
        """Return the value of ``get(*keys)`` as an int.

        Raises UserError if there is no value, or if the value is not a positive integer.
        """
        value = self.get(*keys)
        if value is None:
            raise self.fail(f"lacks {keys[0]}; {self._hint()}")
        if not is_count(value):
            raise self._wrong(keys, "a positive whole number", value)
        return int(value)

    def count_or_none(self, *keys: str) -> int | None:
        """Return the value of ``count(*keys)``, or None if there is no value, or if the value is 0, -1 or false.

        A config.json turns a feature off with 0, -1 or false.
        """
        value = self.get(*keys)
        return None if value is None or is_off(value) else self.count(*keys)

    def number_or_none(self, *keys: str) -> float | None:
        """Return the value of ``get(*keys)`` as a float, or None if there is no value, or if the value is 0, -1 or
        false.

        Raises UserError for any other value that is not a positive finite number.
        """
        value = self.get(*keys)
        if value is None or is_off(value):
            return None
        if not is_positive(value):
            raise self._wrong(keys, "a positive finite number", value)
        return float(value)

    def flag(self, key: str) -> bool | None:
        """Return the boolean at ``key``, or None if the value is missing.

        Raises UserError if the value is not a boolean.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong((key,), "true or false", value)
        return value

    def text(self, *keys: str) -> str:
        """Return the text that ``get(*keys)`` returns, or an empty text if there is no value.

        Raises UserError if the value is not a text.
        """
        value = self.get(*keys)
        if value is not None and not isinstance(value, str):
            raise self._wrong(keys, "a text", value)
        return value or ""

    def part(self, key: str) -> dict[str, Any]:
        """Return the mapping at ``key``, or an empty dict if the value is missing.

        Raises UserError if the value is not a mapping.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong((key,), "a mapping of keys to values", value)
        return value or {}

    def nested(self, key: str) -> Fields:
        """Return the mapping at ``key`` as ``Fields``. The ``Fields`` are empty if the value is missing."""
        return Fields(self.part(key), self.file)

    def listed(self, key: str) -> list[Any]:
        """Return the list at ``key``, or an empty list if the value is missing.

        Raises UserError if the value is not a list.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self._wrong((key,), "a list", value)
        return value or []

    def fail(self, message: str) -> UserError:
        """Return a UserError with ``message`` and the path of the config.json."""
        return UserError(message, self.file)

    def _wrong(self, keys: tuple[str, ...], wanted: str, value: object) -> UserError:
        """Return the UserError for a value of a wrong type or range."""
        key = next((key for key in keys if self.get(key) is not None), keys[0])
        return self.fail(f"{key} must be {wanted}, not {described(value)}")

    def _hint(self) -> str:
        """Return advice for the user, for the end of the error message about a missing key."""
        if self.model_type and not self.defaults and (self.own or self.outer):
            return (
                f"the defaults of model type {quoted(self.model_type)} are not known: write the key into a copy of the "
                "file, if it is the config.json of a language model"
            )
        return "is it the config.json of a language model?"


def split(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a config into two dicts: the values around the language model's config, and the language model's own
    config.

    If no config is nested in ``config``, the first dict is empty.
    """
    outer: dict[str, Any] = {}
    own = dict(config)
    while key := next((key for key in PARTS if isinstance(own.get(key), dict)), ""):
        outer |= {name: value for name, value in own.items() if name != key}
        own = dict(own[key])
    return outer, own


def described(value: object) -> str:
    """Describe a value of a config.json in words, for error messages."""
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a mapping"
    text = spelled(value)
    return text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 3]}..."


def is_off(value: object) -> bool:
    """Return whether ``value`` is 0, -1 or false. A config.json turns a feature off with these values."""
    return isinstance(value, (bool, int, float)) and value is not True and value in (0, -1)


def is_positive(value: object) -> bool:
    """Return whether ``value`` is a positive finite number."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < LARGEST_NUMBER  # type: ignore[operator]


def is_count(value: object, most: int | None = None) -> bool:
    """Return whether ``value`` is a whole number from 1 to ``most``. If ``most`` is None, there is no upper limit."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and (most is None or value <= most)
