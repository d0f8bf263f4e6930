"""Reads the environment variables that change the behaviour of a generated package. docs/install.md lists the
variables.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

#: The values that switch a variable off, in lower case. Every other value switches it on.
OFF = ("", "0", "false", "no", "off")


def is_on(name: str) -> bool:
    """Return whether an environment variable is switched on: set to a value other than "", 0, false, no or off.

    The comparison ignores the case of letters and surrounding whitespace. name: the name of the variable.
    """
    return os.environ.get(name, "").strip().lower() not in OFF


def choice(name: str, allowed: Sequence[str]) -> str:
    """Return the value of the environment variable ``name``, or an empty string if the variable is not set.

    Raises ValueError if the variable has a value that is not in ``allowed``.
    """
    value = os.environ.get(name, "")
    if value and value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be {', '.join(allowed[:-1])} or {allowed[-1]}")
    return value
