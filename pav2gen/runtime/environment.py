"""Reads the environment variables that change what a generated package does. docs/install.md lists them."""

from __future__ import annotations

import os
from collections.abc import Sequence

#: The values that switch a variable off, in lower case. Every other value switches it on.
OFF = ("", "0", "false", "no", "off")


def is_on(name: str) -> bool:
    """Whether the environment variable ``name`` is set to anything but 0, false, no or off, in any case."""
    return os.environ.get(name, "").strip().lower() not in OFF


def choice(name: str, allowed: Sequence[str]) -> str:
    """Return the value of the environment variable ``name``, or an empty string if it is not set.

    Raises ValueError for a value that is not in ``allowed``.
    """
    value = os.environ.get(name, "")
    if value and value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be {', '.join(allowed[:-1])} or {allowed[-1]}")
    return value
