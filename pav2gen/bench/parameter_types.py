"""The types of command-line options whose value is a list of numbers or a number of gibibytes."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from pav2gen.wording import quoted


class Numbers(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """An option's type: positive whole numbers, separated by commas, such as ``8192,32768``."""

    name = "N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Convert the option's text to a tuple of distinct numbers in ascending order."""
        if isinstance(value, tuple):
            return value
        words = value.split(",")
        if not all(re.fullmatch(r"[0-9]{1,10}", word) and 0 < int(word) < 1 << 31 for word in words):
            self.fail(f"{quoted(value)} is not a list of positive whole numbers, such as 8192,32768", param, ctx)
        return tuple(sorted(set(map(int, words))))


class Gibibytes(click.FloatRange):
    """An option's type: a number of gibibytes above a minimum. Unlike click's FloatRange, this type rejects nan."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert the option's text to a number of gibibytes."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
