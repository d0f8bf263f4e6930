"""Evaluates an expression that changes or masks attention scores, in plain Python, for the float64 reference.

Integers are Python integers. All other numbers are float64. This module has its own parser, so that the reference does
not share code with the kernels.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

Names = Mapping[str, Any]
Evaluate = Callable[[Names], Any]


def _divide(a: float, b: float) -> float:
    """Return a / b by the rules of IEEE 754. Division by zero gives an infinity, and 0 / 0 gives NaN."""
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


def _sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def _floor(x: float) -> float:
    return float(math.floor(x)) if math.isfinite(x) else x


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "tanh": math.tanh, "exp": _exp, "log": _log, "sqrt": _sqrt, "floor": _floor, "abs": abs, "min": min, "max": max,
}  # fmt: skip

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: _divide,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}

_COMPARE: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}


def evaluator(text: str) -> Evaluate:
    """Parse the expression ``text``. Return a function that computes the expression's value from a dict of names and
    values.

    The dict has these names: ``s`` (the score), ``q`` and ``k`` (the positions of the query and the key), ``h`` and
    ``kvh`` (the indices of the query head and the KV head), ``len`` (the length of the sequence in tokens), and the
    names of parameter tensors. The value of a parameter tensor is a sequence of floats.

    Raises SyntaxError, ValueError or KeyError if ``text`` contains syntax that modifications can't have.
    """
    return _build(ast.parse(text.strip(), mode="eval").body)


def _build(node: ast.expr) -> Evaluate:
    """Return a function that evaluates the syntax tree ``node``."""
    if isinstance(node, ast.Constant):
        value = node.value
        return lambda names: value
    if isinstance(node, ast.Name):
        name = node.id
        return lambda names: names[name]
    if isinstance(node, ast.Subscript):
        tensor, index = _build(node.value), _build(node.slice)
        return lambda names: tensor(names)[index(names)]
    if isinstance(node, ast.BinOp):
        operation, left, right = _BINARY[type(node.op)], _build(node.left), _build(node.right)
        return lambda names: operation(left(names), right(names))
    if isinstance(node, ast.UnaryOp):
        operand = _build(node.operand)
        return (lambda names: not operand(names)) if isinstance(node.op, ast.Not) else (lambda names: -operand(names))
    if isinstance(node, ast.IfExp):
        test, then, other = _build(node.test), _build(node.body), _build(node.orelse)
        return lambda names: then(names) if test(names) else other(names)
    if isinstance(node, ast.BoolOp):
        parts, combine = [_build(part) for part in node.values], all if isinstance(node.op, ast.And) else any
        return lambda names: combine(part(names) for part in parts)
    if isinstance(node, ast.Compare):
        return _comparison(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        function, arguments = _FUNCTIONS[node.func.id], [_build(argument) for argument in node.args]
        return lambda names: function(*(argument(names) for argument in arguments))
    raise ValueError(f"{type(node).__name__} is not part of the language of attention modifications")


def _comparison(node: ast.Compare) -> Evaluate:
    """Return a function that evaluates a comparison, or a chain of comparisons such as ``a < b < c``."""
    sides = [_build(side) for side in (node.left, *node.comparators)]
    operations = [_COMPARE[type(op)] for op in node.ops]

    def compare(names: Names) -> bool:
        values = [side(names) for side in sides]
        return all(op(a, b) for op, a, b in zip(operations, values, values[1:]))

    return compare
