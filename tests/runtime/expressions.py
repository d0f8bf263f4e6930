"""Random expressions, and what float32 may make of them: a value with the error of its calculation."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from pav2gen.family.modifications.tree import COMPARISONS, INTEGER, NUMBER, Expression

TENSORS = {"slope": "heads", "bias": "kv_heads"}

EPS = 2.0**-23


class Undecided(Exception):
    """Float32 may decide otherwise here, or leave its range."""


class Writer:
    """Writes random expressions, of each type; not all of them are accepted by the parser."""

    def __init__(self, random: random.Random, scores: bool) -> None:
        self.random = random
        self.scores = scores

    def condition(self, depth: int) -> str:
        pick = self.random.randrange(10)
        if depth <= 0 or pick < 5:
            of = self.integer if self.random.random() < 0.7 else self.number
            sides = [of(depth - 1) for _ in range(3 if pick == 0 else 2)]
            ops = [self.random.choice(list(COMPARISONS)) for _ in sides[1:]]
            return " ".join([sides[0], *(f"{op} {side}" for op, side in zip(ops, sides[1:], strict=True))])
        if pick < 8:
            word = self.random.choice(("and", "or"))
            return f"({self.condition(depth - 1)}) {word} ({self.condition(depth - 1)})"
        if pick == 8:
            return f"not ({self.condition(depth - 1)})"
        return f"({self.condition(depth - 1)}) if ({self.condition(depth - 1)}) else ({self.condition(depth - 1)})"

    def integer(self, depth: int) -> str:
        pick = self.random.randrange(12)
        if depth <= 0 or pick < 2:
            return self.random.choice(["q", "k", "h", "kvh", "len", "q", "k", str(self.random.randrange(9)), "1000003"])
        if pick < 7:
            return f"({self.integer(depth - 1)} {self.random.choice('+-*')} {self.integer(depth - 1)})"
        if pick < 10:
            divisor = self.random.choice(("len", "3", "-7", "64", "max(q, 1)", "(h + 2)", "(-1 - kvh)", "(k + 1)"))
            return f"({self.integer(depth - 1)} {self.random.choice(('//', '%'))} {divisor})"
        if pick == 10:
            return f"({self.integer(depth - 1)} if {self.condition(depth - 2)} else {self.integer(depth - 1)})"
        inner = f"{self.integer(depth - 1)}, {self.integer(depth - 1)}"
        return self.random.choice(
            (f"abs({self.integer(depth - 1)})", f"min({inner})", f"max({inner})", f"-{self.integer(0)}")
        )

    def number(self, depth: int) -> str:
        pick = self.random.randrange(13)
        if depth <= 0 or pick < 2:
            literal = self.random.choice(("0.5", "30.0", "-2.25", "0.1", "1e-3", "7.0"))
            leaf = ["s", "s", "s"] if self.scores else []
            return self.random.choice([*leaf, "slope[h]", "bias[kvh]", literal, f"(1.0 * {self.integer(0)})"])
        if pick < 7:
            return f"({self.mixed(depth)} {self.random.choice('+-*/')} {self.number(depth - 1)})"
        if pick < 9:
            return f"{self.random.choice(('tanh', 'exp', 'log', 'sqrt', 'floor', 'abs'))}({self.mixed(depth)})"
        if pick == 9:
            return f"({self.mixed(depth)} if {self.condition(depth - 1)} else {self.number(depth - 1)})"
        if pick == 10:
            return f"-{self.number(depth - 1)}"
        if pick == 11:
            return f"{self.random.choice(('min', 'max'))}({self.mixed(depth)}, {self.number(depth - 1)})"
        return f"({self.number(depth - 1)} + {self.number(depth - 1)} * {self.number(depth - 1)})"

    def mixed(self, depth: int) -> str:
        """A number, now and then an integer in its place."""
        return self.integer(depth - 1) if self.random.random() < 0.2 else self.number(depth - 1)


@dataclass
class Bounded:
    """A value, and how far float32's may be from it."""

    value: float
    error: float


def bounded(x: Expression, names: dict[str, object]) -> Bounded:
    """The float64 value of a number, with the error that float32 may make. Raises Undecided."""
    if x.op == "literal":
        return Bounded(float(x.value), abs(float(x.value)) * EPS)
    if x.op == "name":
        return Bounded(float(names["s"]), 0.0)
    if x.op == "element":
        return Bounded(names[str(x.value)][names["h" if TENSORS[str(x.value)] == "heads" else "kvh"]], 0.0)
    if x.op == "float":
        value = whole(x.args[0], names)
        return Bounded(value, abs(value) * EPS)
    if x.op == "if":
        return bounded(x.args[1] if holds(x.args[0], names) else x.args[2], names)
    args = [bounded(arg, names) for arg in x.args]
    result = RULES[x.op](*args)
    result.error += abs(result.value) * EPS * 4 + 1e-37
    if not math.isfinite(result.value) or abs(result.value) > 1e37 or result.error > 1e37:
        raise Undecided
    return result


def _product(a: Bounded, b: Bounded) -> Bounded:
    return Bounded(a.value * b.value, abs(a.value) * b.error + abs(b.value) * a.error + a.error * b.error)


def _quotient(a: Bounded, b: Bounded) -> Bounded:
    low = abs(b.value) - b.error
    if low <= 1e-30:
        raise Undecided
    return Bounded(a.value / b.value, (a.error + abs(a.value / b.value) * b.error) / low)


def _log(a: Bounded) -> Bounded:
    if a.value - a.error <= 0:
        raise Undecided
    return Bounded(math.log(a.value), a.error / (a.value - a.error))


def _sqrt(a: Bounded) -> Bounded:
    if a.value - a.error <= 0:
        raise Undecided
    return Bounded(math.sqrt(a.value), a.error / math.sqrt(a.value - a.error))


def _exp(a: Bounded) -> Bounded:
    if abs(a.value) > 80 or a.error > 1:
        raise Undecided
    return Bounded(math.exp(a.value), math.exp(a.value) * math.expm1(a.error))


def _floor(a: Bounded) -> Bounded:
    if math.floor(a.value - a.error) != math.floor(a.value + a.error):
        raise Undecided
    return Bounded(float(math.floor(a.value)), 0.0)


RULES = {
    "+": lambda a, b: Bounded(a.value + b.value, a.error + b.error),
    "-": lambda a, b: Bounded(a.value - b.value, a.error + b.error),
    "*": _product,
    "/": _quotient,
    "neg": lambda a: Bounded(-a.value, a.error),
    "abs": lambda a: Bounded(abs(a.value), a.error),
    "min": lambda a, b: Bounded(min(a.value, b.value), max(a.error, b.error)),
    "max": lambda a, b: Bounded(max(a.value, b.value), max(a.error, b.error)),
    "tanh": lambda a: Bounded(math.tanh(a.value), a.error),
    "exp": _exp, "log": _log, "sqrt": _sqrt, "floor": _floor,
}  # fmt: skip


def whole(x: Expression, names: dict[str, object]) -> int:
    """The value of an integer; it lies in the interval that the tree claims."""
    if x.op == "literal":
        return int(x.value)
    if x.op == "name":
        return int(names[str(x.value)])  # type: ignore[call-overload]
    if x.op == "if":
        value = whole(x.args[1] if holds(x.args[0], names) else x.args[2], names)
    else:
        value = INTEGERS[x.op](*(whole(arg, names) for arg in x.args))
    assert x.low <= value <= x.high, (x, value)
    return value


INTEGERS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "neg": lambda a: -a, "abs": abs, "min": min, "max": max,
}  # fmt: skip


def holds(x: Expression, names: dict[str, object]) -> bool:
    """The value of a condition. Raises Undecided where numbers are as near as their errors."""
    if x.op == "not":
        return not holds(x.args[0], names)
    if x.op in ("and", "or"):
        values = [holds(arg, names) for arg in x.args]
        return all(values) if x.op == "and" else any(values)
    a, b = x.args
    if a.type == INTEGER:
        return COMPARISONS[x.op](whole(a, names), whole(b, names))
    assert a.type == NUMBER
    left, right = bounded(a, names), bounded(b, names)
    if abs(left.value - right.value) <= left.error + right.error:
        raise Undecided
    return COMPARISONS[x.op](left.value, right.value)
