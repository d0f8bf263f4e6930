"""Reads values from a config.json. A missing value is replaced by the default of the model's configuration class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pav2gen.errors import UserError
from pav2gen.reading.model.defaults import TEXT_TYPES, defaults_of
from pav2gen.wording import quoted

#: Keys that hold the config of the language model, in the config of a model of several parts. An outer key comes before
#: a key nested in it.
PARTS = ("thinker_config", "text_config", "llm_config", "language_config")


class Fields:
    """The values of a language model's config.json, which may nest the language model's config in another one.

    A key is looked up in this order: in the language model's own config, in the defaults of its configuration class, in
    the configs around it.
    """

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        outer, own = split(config)
        self.file = file
        self.own = own
        self.outer = outer
        kind = own.get("model_type") or TEXT_TYPES.get(str(outer.get("model_type")), outer.get("model_type"))
        self.model_type = str(kind) if kind else ""
        self.defaults = defaults_of(kind)

    def get(self, *keys: str) -> Any:
        """The value of the first of ``keys`` that has a value other than null. None if no key has such a value.

        The keys are looked up in the order that the class describes. The defaults of the configuration class are
        skipped if the language model's own config has null for one of ``keys``.
        """
        nulls = any(key in self.own for key in keys)
        for source in (self.own, *([] if nulls else [self.defaults]), self.outer):
            for key in keys:
                if source.get(key) is not None:
                    return source[key]
        return None

    def given(self, key: str) -> bool:
        """Whether the config.json itself has a value other than null for ``key``."""
        return self.own.get(key) is not None or self.outer.get(key) is not None

    def count(self, *keys: str) -> int:
        """The value that ``get(*keys)`` returns, as an int. Raises UserError unless the value is a positive integer."""
        value = self.get(*keys)
        if value is None:
            raise self.fail(f"lacks {keys[0]}; {self._hint()}")
        if not is_count(value):
            key = next((key for key in keys if self.get(key) is not None), keys[0])
            raise self.fail(f"{key} must be a positive whole number, not {quoted(value)}")
        return int(value)

    def part(self, key: str) -> dict[str, Any]:
        """The mapping at ``key``. Empty if the value is missing or not a mapping."""
        value = self.get(key)
        return value if isinstance(value, dict) else {}

    def listed(self, key: str) -> list[Any]:
        """The list at ``key``. Empty if the value is missing or not a list."""
        value = self.get(key)
        return value if isinstance(value, list) else []

    def fail(self, message: str) -> UserError:
        """Make a UserError that names the config file."""
        return UserError(message, self.file)

    def _hint(self) -> str:
        """Advice for the error message about a missing key."""
        if self.model_type and not self.defaults and (self.own or self.outer):
            return (
                f"the defaults of model type {quoted(self.model_type)} are not known: write the key into a copy of the "
                "file, if it is the config.json of a language model"
            )
        return "is it the config.json of a language model?"


def split(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a config into two: the values outside the language model's own config, and the values in it."""
    outer: dict[str, Any] = {}
    own = dict(config)
    while key := next((key for key in PARTS if isinstance(own.get(key), dict)), ""):
        outer |= {name: value for name, value in own.items() if name != key}
        own = dict(own[key])
    return outer, own


def is_count(value: object, most: int | None = None) -> bool:
    """Whether ``value`` is a whole number from 1 to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and (most is None or value <= most)
