"""Translates a typed expression tree to a CUDA expression with float32 numbers and 32-bit integers.

In an expression tree, integer division rounds down, as in Python. In C, integer division rounds toward zero. If an
operand of a division or a remainder may be negative, the CUDA expression therefore calls ``floor_div`` or ``floor_mod``
of runtime/cuda/pav2_integer.cuh.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from pav2gen.family.modifications.tree import ARITHMETIC, COMPARISONS, INTEGER, NUMBER, Expression

#: Maps an operation of a tree to the precedence of its operator in C++. A higher number binds more tightly. Calls and
#: names bind most tightly (``_TIGHTEST``).
_PRECEDENCE = {
    "if": 1, "or": 2, "and": 3, "==": 4, "!=": 4, "<": 5, "<=": 5, ">": 5, ">=": 5,
    "+": 6, "-": 6, "*": 7, "/": 7, "//": 7, "%": 7, "neg": 8, "not": 8,
}  # fmt: skip
_TIGHTEST = 9

# The precise functions: the error of the fast ``__expf`` grows with its argument and would exceed the tests' tolerance,
# and a tanh that is computed with ``__expf`` overflows for arguments from 88 on.
_FUNCTIONS = {"tanh": "tanhf", "exp": "expf", "log": "logf", "sqrt": "sqrtf", "floor": "floorf"}
_OF_TYPE = {("abs", NUMBER): "fabsf", ("min", NUMBER): "fminf", ("max", NUMBER): "fmaxf",
            ("abs", INTEGER): "abs", ("min", INTEGER): "min", ("max", INTEGER): "max"}  # fmt: skip


def cuda_text(x: Expression, names: Mapping[str, str]) -> str:
    """Return the CUDA expression for the tree ``x``.

    names: maps each name and each parameter tensor in ``x`` to the CUDA expression that reads its value.
    """
    return _text(x, names)[0]


def uses_floor(x: Expression) -> bool:
    """Return whether the CUDA expression for ``x`` calls ``floor_div`` or ``floor_mod``."""
    return any(map(uses_floor, x.args)) or (x.op in ("//", "%") and not _c_rule_serves(x))


def literal(value: int | float | bool | str) -> str:
    """Return ``value`` as a CUDA literal: ``true``, ``7`` or ``0.5f``. A float is rounded to float32."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    assert isinstance(value, float)
    return f"{shortest(value)}f"


def shortest(value: float) -> str:
    """Return the decimal text with the fewest digits that rounds to the same float32 number as ``value``."""
    rounded = struct.unpack("f", struct.pack("f", value))[0]
    for digits in range(1, 10):
        text = f"{rounded:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == rounded:
            break
    return repr(float(text))


def _c_rule_serves(x: Expression) -> bool:
    """Return whether neither operand of ``x`` can be negative, so that C and Python divide the operands in the same
    way.
    """
    a, b = x.args
    return a.low >= 0 and b.low > 0


def _text(x: Expression, names: Mapping[str, str]) -> tuple[str, int]:
    """Return the CUDA expression for the tree ``x``, and the precedence of its outermost operator."""
    if x.op == "literal":
        negative = not isinstance(x.value, (bool, str)) and x.value < 0
        return literal(x.value), _PRECEDENCE["neg"] if negative else _TIGHTEST
    if x.op in ("name", "element"):
        return names[str(x.value)], _TIGHTEST
    if x.op == "float":
        return f"static_cast<float>({cuda_text(x.args[0], names)})", _TIGHTEST
    if x.op in ("neg", "not"):
        sign = "-" if x.op == "neg" else "!"
        return sign + _within(x.args[0], _TIGHTEST, names), _PRECEDENCE[x.op]
    if x.op == "if":
        test, a, b = (_within(arg, _PRECEDENCE["if"] + 1, names) for arg in x.args)
        return f"{test} ? {a} : {b}", _PRECEDENCE["if"]
    if x.op in ("//", "%") and not _c_rule_serves(x):
        function = "floor_div" if x.op == "//" else "floor_mod"
        return f"{function}({cuda_text(x.args[0], names)}, {cuda_text(x.args[1], names)})", _TIGHTEST
    if x.op in ARITHMETIC or x.op in COMPARISONS or x.op in ("and", "or"):
        return _infix(x, names), _PRECEDENCE[x.op]
    function = _FUNCTIONS.get(x.op) or _OF_TYPE[x.op, x.type]
    return f"{function}({', '.join(cuda_text(arg, names) for arg in x.args)})", _TIGHTEST


def _infix(x: Expression, names: Mapping[str, str]) -> str:
    """Return the CUDA expression for the binary operation ``x``."""
    sign = {"and": "&&", "or": "||", "//": "/"}.get(x.op, x.op)
    binds = _PRECEDENCE[x.op]
    # An ``and`` that is an operand of ``or`` gets parentheses, because compilers warn without them.
    left = _PRECEDENCE["=="] if x.op == "or" and x.args[0].op == "and" else binds
    right = _PRECEDENCE["=="] if x.op in ("and", "or") and x.args[1].op != x.op else binds + 1
    if x.op in COMPARISONS:
        left = right = _PRECEDENCE["+"]
    return f"{_within(x.args[0], left, names)} {sign} {_within(x.args[1], right, names)}"


def _within(x: Expression, binds: int, names: Mapping[str, str]) -> str:
    """Return the CUDA expression for the operand ``x``, in parentheses if the precedence of ``x`` is lower than
    ``binds``.
    """
    text, own = _text(x, names)
    return text if own >= binds else f"({text})"
