"""Translates the tree of a typed expression to the text of a CUDA expression, which computes with float32 numbers and
32-bit integers.

Division and remainder of integers follow Python. If an operand may be negative, C's rules differ from Python's, so that
the text calls ``floor_div`` and ``floor_mod`` of runtime/cuda/pav2_integer.cuh. The text uses the precise functions
``tanhf`` and ``expf``. The fast ``__expf`` would exceed the tolerance of the tests, because its error grows with its
argument. A tanh that is computed with ``__expf`` overflows for arguments from 88 on.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from pav2gen.family.modifications.tree import ARITHMETIC, COMPARISONS, INTEGER, NUMBER, Expression

#: Operation of a tree -> the precedence in C++ of its CUDA text. An operator with a higher number binds more tightly.
#: Calls and names bind most tightly (``_TIGHTEST``).
_PRECEDENCE = {
    "if": 1, "or": 2, "and": 3, "==": 4, "!=": 4, "<": 5, "<=": 5, ">": 5, ">=": 5,
    "+": 6, "-": 6, "*": 7, "/": 7, "//": 7, "%": 7, "neg": 8, "not": 8,
}  # fmt: skip
_TIGHTEST = 9

_FUNCTIONS = {"tanh": "tanhf", "exp": "expf", "log": "logf", "sqrt": "sqrtf", "floor": "floorf"}
_OF_TYPE = {("abs", NUMBER): "fabsf", ("min", NUMBER): "fminf", ("max", NUMBER): "fmaxf",
            ("abs", INTEGER): "abs", ("min", INTEGER): "min", ("max", INTEGER): "max"}  # fmt: skip


def cuda_text(x: Expression, names: Mapping[str, str]) -> str:
    """The CUDA expression for the tree ``x``. ``names`` maps each name and each parameter tensor to the CUDA text that
    reads its value.
    """
    return _text(x, names)[0]


def uses_floor(x: Expression) -> bool:
    """Whether the CUDA text of ``x`` calls ``floor_div`` or ``floor_mod``."""
    return any(map(uses_floor, x.args)) or (x.op in ("//", "%") and not _c_rule_serves(x))


def literal(value: int | float | bool | str) -> str:
    """``value`` as a CUDA literal: ``true``, ``7`` or ``0.5f``. A float is rounded to float32."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    assert isinstance(value, float)
    return f"{shortest(value)}f"


def shortest(value: float) -> str:
    """The decimal text with the fewest digits that still gives the float32 that is nearest to ``value``."""
    rounded = struct.unpack("f", struct.pack("f", value))[0]
    for digits in range(1, 10):
        text = f"{rounded:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == rounded:
            break
    return repr(float(text))


def _c_rule_serves(x: Expression) -> bool:
    """Whether C's ``/`` and ``%`` give the same results as Python's for the operands of ``x``, which is so if neither
    operand can be negative.
    """
    a, b = x.args
    return a.low >= 0 and b.low > 0


def _text(x: Expression, names: Mapping[str, str]) -> tuple[str, int]:
    """The CUDA text of the tree ``x``, and the precedence of the tree's outermost operation, as in ``_PRECEDENCE``."""
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
    """The CUDA text of the binary operation ``x``. An ``and`` that is an operand of ``or`` gets parentheses, because
    compilers warn without them.
    """
    sign = {"and": "&&", "or": "||", "//": "/"}.get(x.op, x.op)
    binds = _PRECEDENCE[x.op]
    left = _PRECEDENCE["=="] if x.op == "or" and x.args[0].op == "and" else binds
    right = _PRECEDENCE["=="] if x.op in ("and", "or") and x.args[1].op != x.op else binds + 1
    if x.op in COMPARISONS:
        left = right = _PRECEDENCE["+"]
    return f"{_within(x.args[0], left, names)} {sign} {_within(x.args[1], right, names)}"


def _within(x: Expression, binds: int, names: Mapping[str, str]) -> str:
    """The CUDA text of the operand ``x``, in parentheses if the precedence of the operand's outermost operation is
    lower than ``binds``.
    """
    text, own = _text(x, names)
    return text if own >= binds else f"({text})"
