"""Typed trees of the expressions that change or mask attention scores.

Each node has a type: integer (32 bits), number (float32) or condition. Each integer node has an interval that contains
all its possible values. The intervals reveal overflow and division by zero before a kernel is generated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pav2gen.runtime.choice.key import MOST_TOKENS
from pav2gen.wording import quoted

INTEGER, NUMBER, CONDITION = "an integer", "a number", "a condition"

#: The largest allowed number of query heads, and of KV heads, on a tensor-parallel rank.
MOST_HEADS = 4096
#: The largest absolute value of an integer in an expression.
LARGEST_INTEGER = 2**31 - 1
LARGEST_FLOAT, SMALLEST_FLOAT = 3.4028234663852886e38, 1.1754943508222875e-38  # float32, normal


class Mistake(Exception):
    """Raised for an invalid expression. The message says why the expression is invalid, and what to write instead."""


@dataclass(frozen=True)
class Expression:
    """One node of a typed expression tree.

    op: the operation: ``neg``, ``not``, ``and``, ``or``, ``if``, ``float`` (conversion of an integer to a number), or
    one of ``ARITHMETIC``, ``COMPARISONS`` and ``FUNCTIONS``; for a node without operands, ``literal``, ``name`` (a name
    in ``NAMES``) or ``element`` (an element of a parameter tensor).
    type: the type of the node's value: ``INTEGER``, ``NUMBER`` or ``CONDITION``.
    args: the operands; for ``if``, the condition, the value if the condition is true, and the value if the condition is
    false.
    value: for a ``literal`` node, its value; for a ``name`` node, the name; for an ``element`` node, the name of the
    tensor; else unused.
    low, high: for an integer node, the least and the greatest value that the node can have; for other nodes, 0.
    """

    op: str
    type: str
    args: tuple[Expression, ...] = ()
    value: int | float | bool | str = 0
    low: int = 0
    high: int = 0

    @property
    def is_literal(self) -> bool:
        """Whether this node is a constant: an integer, a number or a condition with a fixed value."""
        return self.op == "literal"


#: Maps each name that an expression may use, besides its parameter tensors, to the node of the name. ``s`` is the
#: score, ``q`` and ``k`` are the positions of the query and the key, ``h`` and ``kvh`` are the query head and the KV
#: head, ``len`` is the length of the sequence in tokens.
NAMES: Mapping[str, Expression] = {
    "s": Expression("name", NUMBER, value="s"),
    "q": Expression("name", INTEGER, value="q", low=0, high=MOST_TOKENS - 1),
    "k": Expression("name", INTEGER, value="k", low=0, high=MOST_TOKENS - 1),
    "h": Expression("name", INTEGER, value="h", low=0, high=MOST_HEADS - 1),
    "kvh": Expression("name", INTEGER, value="kvh", low=0, high=MOST_HEADS - 1),
    "len": Expression("name", INTEGER, value="len", low=1, high=MOST_TOKENS),
}

ARITHMETIC = ("+", "-", "*", "/", "//", "%")

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}

#: MIRRORED maps each comparison to the one that gives the same result after the sides are swapped. NEGATED maps each
#: comparison to its opposite.
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}

#: Maps each function of expressions that always returns a number to the Python function that computes its result if the
#: argument is a literal.
NUMBER_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "tanh": math.tanh,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "floor": lambda x: float(math.floor(x)),
}
FUNCTIONS = (*NUMBER_FUNCTIONS, "abs", "min", "max")


def integer(value: int) -> Expression:
    """Return a literal node of type integer. Raises Mistake if ``value`` does not fit in 32 bits."""
    if abs(value) > LARGEST_INTEGER:
        raise Mistake(f"{quoted(value)} does not fit an integer of 32 bits; a number does, with '.0' behind it")
    return Expression("literal", INTEGER, value=value, low=value, high=value)


def number(value: float) -> Expression:
    """Return a literal node of type number. Raises Mistake if ``value`` is outside the range of normal float32."""
    if not math.isfinite(value) or abs(value) > LARGEST_FLOAT:
        raise Mistake(f"{value} is beyond float32, which ends at 3.4e38")
    if value != 0 and abs(value) < SMALLEST_FLOAT:
        raise Mistake(f"{value} is too small for float32, which begins at 1.2e-38")
    return Expression("literal", NUMBER, value=value)


def condition(value: bool) -> Expression:
    """Return a literal node of type condition, which is always true or always false."""
    return Expression("literal", CONDITION, value=value)


def element(tensor: str) -> Expression:
    """Return a node that reads an element of the parameter tensor ``tensor``.

    The index of the element is the query head or the KV head of the score, depending on the tensor's dimension.
    """
    return Expression("element", NUMBER, value=tensor)


def as_number(x: Expression) -> Expression:
    """Return ``x`` if ``x`` is a number. If ``x`` is an integer, return a node that converts ``x`` to a number.

    Raises Mistake if ``x`` is a condition.
    """
    if x.type == NUMBER:
        return x
    if x.type == CONDITION:
        raise Mistake("a condition is not a number; write '1 if ... else 0'")
    return number(float(x.value)) if x.is_literal else Expression("float", NUMBER, (x,))


def _interval(op: str, args: tuple[Expression, ...], corners: list[int]) -> Expression:
    low, high = min(corners), max(corners)
    if max(abs(low), abs(high)) > LARGEST_INTEGER:
        raise Mistake(
            f"this integer may reach {high if high > LARGEST_INTEGER else low}, beyond 32 bits; "
            "calculate with numbers: write 1.0 * before the first operand"
        )
    return Expression(op, INTEGER, args, low=low, high=high)


def negate(x: Expression) -> Expression:
    """Return the node for ``-x``.

    Raises Mistake for a condition, and for an integer ``x`` if ``-x`` may not fit in 32 bits.
    """
    if x.type == CONDITION:
        raise Mistake("'-' takes a number, not a condition; the opposite of a condition is 'not ...'")
    if x.is_literal:
        return integer(-int(x.value)) if x.type == INTEGER else number(-float(x.value))
    return _interval("neg", (x,), [-x.low, -x.high]) if x.type == INTEGER else Expression("neg", NUMBER, (x,))


def arithmetic(op: str, a: Expression, b: Expression) -> Expression:
    """Return the node for ``a op b``, where ``op`` is an operator in ``ARITHMETIC``, such as ``+``.

    The result of ``/`` is a number. ``//`` and ``%`` take integers and round as in Python.

    Raises Mistake for an operand of a wrong type, for an integer result that may not fit in 32 bits, for a divisor that
    is 0, and for an integer divisor that may be 0.
    """
    if CONDITION in (a.type, b.type):
        raise Mistake(f"'{op}' takes numbers, not a condition; write '1 if ... else 0'")
    whole = a.type == b.type == INTEGER
    if op in ("//", "%") and not whole:
        works = "floor(a / b)" if op == "//" else "a - floor(a / b) * b"
        raise Mistake(f"'{op}' takes integers (positions, heads); for numbers write {works}")
    if op in ("/", "//", "%"):
        _check_divisor(op, b)
    if whole and op != "/":
        return _fold_integer(op, a, b) if a.is_literal and b.is_literal else _interval(op, (a, b), _corners(op, a, b))
    a, b = as_number(a), as_number(b)
    return (
        number(_ARITHMETIC[op](a.value, b.value)) if a.is_literal and b.is_literal else Expression(op, NUMBER, (a, b))
    )


def _check_divisor(op: str, b: Expression) -> None:
    if b.is_literal and b.value == 0:
        raise Mistake(f"the divisor of '{op}' is 0")
    if b.type == INTEGER and b.low <= 0 <= b.high:
        works = "write max(..., 1) around it"
        raise Mistake(f"the divisor of '{op}' may be 0; {works}")


#: Maps each arithmetic operation to the Python function that computes its result for two literals.
_ARITHMETIC: Mapping[str, Callable[..., float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def _fold_integer(op: str, a: Expression, b: Expression) -> Expression:
    return integer(int(_ARITHMETIC[op](a.value, b.value)))


def _corners(op: str, a: Expression, b: Expression) -> list[int]:
    """Return integers between which all results of ``a op b`` lie. ``a`` and ``b`` are nodes of type integer."""
    if op != "%":  # reaches its least and its greatest result at bounds of the operands
        return [int(_ARITHMETIC[op](x, y)) for x in (a.low, a.high) for y in (b.low, b.high)]
    if a.low >= 0 and a.high < b.low:
        return [a.low, a.high]
    return [0, b.high - 1] if b.low > 0 else [b.low + 1, 0]


def compare(op: str, a: Expression, b: Expression) -> Expression:
    """Return the node for ``a op b``, where ``op`` is an operator in ``COMPARISONS``, such as ``<``.

    If one operand is an integer and the other is a number, the integer is converted to a number. Raises Mistake if an
    operand is a condition.
    """
    if CONDITION in (a.type, b.type):
        raise Mistake(f"'{op}' compares numbers, not conditions; combine conditions with and, or, not")
    if a.is_literal and b.is_literal:
        return condition(COMPARISONS[op](a.value, b.value))  # type: ignore[arg-type]
    if not a.type == b.type == INTEGER:
        a, b = as_number(a), as_number(b)
    return Expression(op, CONDITION, (a, b))


def logic(op: str, a: Expression, b: Expression) -> Expression:
    """Return the node for ``a op b``, where ``op`` is "and" or "or". Raises Mistake unless both operands are
    conditions.
    """
    for x in (a, b):
        if x.type != CONDITION:
            raise Mistake(f"'{op}' takes conditions, not {x.type}; compare it, such as '... != 0'")
    for x, other in ((a, b), (b, a)):
        if x.is_literal:
            return other if x.value == (op == "and") else x
    return Expression(op, CONDITION, (a, b))


def opposite(x: Expression) -> Expression:
    """Return the node for ``not x``. Raises Mistake unless ``x`` is a condition.

    The node is simplified: a comparison becomes the opposite comparison, and ``not`` moves inside ``and`` and ``or``.
    """
    if x.type != CONDITION:
        raise Mistake(f"'not' takes a condition, not {x.type}; compare it, such as '... == 0'")
    if x.is_literal:
        return condition(not x.value)
    if x.op == "not":
        return x.args[0]
    if x.op in NEGATED:
        return Expression(NEGATED[x.op], CONDITION, x.args)
    if x.op in ("and", "or"):
        return Expression("or" if x.op == "and" else "and", CONDITION, tuple(map(opposite, x.args)))
    return Expression("not", CONDITION, (x,))


def choose(test: Expression, a: Expression, b: Expression) -> Expression:
    """Return the node for ``a if test else b``.

    If one of ``a`` and ``b`` is an integer and the other is a number, the integer is converted to a number.

    Raises Mistake if ``test`` is not a condition, or if only one of ``a`` and ``b`` is a condition.
    """
    if test.type != CONDITION:
        raise Mistake(f"'if' takes a condition, not {test.type}; compare it, such as '... != 0'")
    if CONDITION in (a.type, b.type) and a.type != b.type:
        raise Mistake(f"the two results of 'if' are {a.type} and {b.type}; make them the same")
    if a.type != b.type:
        a, b = as_number(a), as_number(b)
    if test.is_literal:
        return a if test.value else b
    if a == b:
        return a
    if a.type == CONDITION:
        return logic("or", logic("and", test, a), logic("and", opposite(test), b))
    return Expression("if", a.type, (test, a, b), low=min(a.low, b.low), high=max(a.high, b.high))


def call(function: str, args: tuple[Expression, ...]) -> Expression:
    """Return the node for ``function(args)``, where ``function`` is a name in ``FUNCTIONS``, such as ``exp``.

    Raises Mistake for a wrong number of arguments, and for an argument of a wrong type.
    """
    most = "two or more arguments" if function in ("min", "max") else "one argument"
    if len(args) != 1 if most == "one argument" else len(args) < 2:
        raise Mistake(f"{function}() takes {most}, not {len(args)}")
    if any(x.type == CONDITION for x in args):
        raise Mistake(f"{function}() takes numbers, not a condition")
    if function in ("min", "max"):
        result = args[0]
        for x in args[1:]:
            result = _extreme(function, result, x)
        return result
    return _absolute(args[0]) if function == "abs" else _number_function(function, as_number(args[0]))


def _number_function(function: str, x: Expression) -> Expression:
    if not x.is_literal:
        return Expression(function, NUMBER, (x,))
    try:
        return number(NUMBER_FUNCTIONS[function](float(x.value)))
    except (ValueError, OverflowError):
        raise Mistake(f"{function}({x.value}) has no value in float32") from None


def _absolute(x: Expression) -> Expression:
    if x.is_literal:
        return integer(abs(int(x.value))) if x.type == INTEGER else number(abs(float(x.value)))
    if x.type == NUMBER:
        return Expression("abs", NUMBER, (x,))
    low = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Expression("abs", INTEGER, (x,), low=low, high=max(abs(x.low), abs(x.high)))


def _extreme(function: str, a: Expression, b: Expression) -> Expression:
    """Return the node for ``min(a, b)`` or ``max(a, b)``, depending on ``function``."""
    pick = min if function == "min" else max
    if a.type != b.type:
        a, b = as_number(a), as_number(b)
    if a.is_literal and b.is_literal:
        value = pick(a.value, b.value)
        return integer(int(value)) if a.type == INTEGER else number(float(value))
    return Expression(function, a.type, (a, b), low=pick(a.low, b.low), high=pick(a.high, b.high))


def walk(x: Expression) -> list[Expression]:
    """Return all nodes of the tree ``x``. The operands of an operation come before the operation in the list."""
    return [node for arg in x.args for node in walk(arg)] + [x]


def uses(x: Expression, name: str) -> bool:
    """Return whether the tree ``x`` contains ``name``, the name of a value such as ``len`` or of a parameter tensor."""
    return any(node.op in ("name", "element") and node.value == name for node in walk(x))
