"""Parses the text of an expression that changes or masks attention scores, and returns a typed tree.

An error message gives the column of a mistake, and advice on what to write instead.

The syntax of expressions is a part of Python's syntax. Python's ``ast`` module parses the text, and this module refuses
all other syntax.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from pav2gen.family.modifications import tree
from pav2gen.family.modifications.tree import CONDITION, FUNCTIONS, NAMES, Expression, Mistake
from pav2gen.wording import did_you_mean, quoted

LONGEST = 400  # characters
DEEPEST = 24  # operations within one another
MOST_NODES = 120

#: Maps the dimension of a parameter tensor to the index that an expression must write, such as ``h`` in ``slopes[h]``.
INDEX = {"heads": "h", "kv_heads": "kvh"}

_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}

#: Maps each class of ``ast`` nodes that an expression must not contain to an error message with advice.
_INSTEAD: Mapping[type, str] = {
    ast.Pow: "'**' is not part of the language; write x * x, or exp(y * log(x))",
    ast.BitAnd: "'&' is not part of the language; write 'and'",
    ast.BitOr: "'|' is not part of the language; write 'or'",
    ast.BitXor: "'^' is not part of the language; write x * x for a square, or '!=' for an exclusive or",
    ast.LShift: "'<<' is not part of the language; multiply",
    ast.RShift: "'>>' is not part of the language; write '//'",
    ast.MatMult: "'@' is not part of the language",
    ast.Invert: "'~' is not part of the language; write 'not'",
    ast.UAdd: "a sign '+' is not part of the language; leave it out",
    ast.Is: "'is' is not part of the language; write '=='",
    ast.IsNot: "'is not' is not part of the language; write '!='",
    ast.In: "'in' is not part of the language; write 'a == 1 or a == 2'",
    ast.NotIn: "'not in' is not part of the language; write 'a != 1 and a != 2'",
    ast.Attribute: "attributes (a '.') are not part of the language",
    ast.Lambda: "a lambda is not part of the language; write the expression alone",
    ast.NamedExpr: "':=' is not part of the language",
    ast.Tuple: "a list of values is not part of the language; write one expression",
    ast.List: "a list is not part of the language",
    ast.Set: "a set is not part of the language",
    ast.Dict: "a mapping is not part of the language; put the expression in quotes",
    ast.JoinedStr: "a string is not part of the language",
}


#: Maps operators of other languages, which Python's parser cannot read, to an error message with advice.
_FOREIGN = {
    "&&": "'&&' is not part of the language; write 'and'",
    "||": "'||' is not part of the language; write 'or'",
    "<>": "'<>' is not part of the language; write '!='",
    "===": "'===' is not part of the language; write '=='",
    "!==": "'!==' is not part of the language; write '!='",
    "=>": "'=>' is not part of the language; write '>='",
    "=<": "'=<' is not part of the language; write '<='",
    "!": "'!' is not part of the language; write 'not'",
    "?": "'?' is not part of the language; write 'a if condition else b'",
    ";": "';' is not part of the language; write one expression",
}
_FOREIGN_OPERATOR = re.compile(r"!==|===|&&|\|\||<>|=>|=<|!(?!=)|\?|;")

#: Maps functions that users may expect, but that expressions do not have, to an error message with advice.
_OTHER_FUNCTIONS = {
    "float": "float() is not part of the language; an integer beside a number is converted: write 1.0 * x",
    "int": "int() is not part of the language; floor() rounds a number down, and '//' divides integers",
    "bool": "bool() is not part of the language; compare: write x != 0",
    "round": "round() is not part of the language; write floor(x + 0.5)",
    "pow": "pow() is not part of the language; write x * x, or exp(y * log(x))",
}

#: Maps constants that users may expect, but that expressions do not have, to the advice that ends the error message.
_OTHER_NAMES = {
    **dict.fromkeys(("True", "true", "False", "false"), "a condition compares values, such as k < 4"),
    **dict.fromkeys(("None", "null"), "to leave out a score or a mask, remove its key"),
}


class ExpressionError(Exception):
    """Raised if the text of an expression has a mistake.

    message: a description of the mistake, and advice on what to write instead.
    column: the column of the mistake in the text, counted from 1.
    """

    def __init__(self, message: str, column: int) -> None:
        self.message = message
        self.column = column
        super().__init__(f"column {column}: {message}")


def parse_score(text: str, tensors: Mapping[str, str] | None = None) -> Expression:
    """Parse ``text``, an expression that computes a new score, into a tree whose value is a number.

    In ``text``, ``s`` is the old score.

    tensors: maps the name of each parameter tensor to its dimension, ``heads`` or ``kv_heads``.

    Raises ExpressionError for a mistake in ``text``.
    """
    found = _parse(text, tensors or {}, ())
    if found.type == CONDITION:
        raise ExpressionError("a score is a number, and this is a condition; write it as a mask", 1)
    return tree.as_number(found)


def parse_mask(text: str, tensors: Mapping[str, str] | None = None) -> Expression:
    """Parse ``text``, the condition under which a query attends to a key, into a tree whose value is a condition.

    tensors: maps the name of each parameter tensor to its dimension, ``heads`` or ``kv_heads``.

    Raises ExpressionError for a mistake in ``text``, and for a condition that is always true or always false.
    """
    found = _parse(text, tensors or {}, ("s",))
    if found.type != CONDITION:
        raise ExpressionError(f"a mask is a condition, and this is {found.type}; compare it, such as '... < 1024'", 1)
    if found.is_literal:
        raise ExpressionError(f"this mask is always {str(found.value).lower()}; compare q, k or h", 1)
    return found


def _parse(text: str, tensors: Mapping[str, str], hidden: tuple[str, ...]) -> Expression:
    _check_characters(text)
    start = len(text) - len(text.lstrip(" "))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            root = ast.parse(text[start:], mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise _syntax_error(text, error, start) from None
    count = sum(1 for node in ast.walk(root) if isinstance(node, ast.expr))
    if count > MOST_NODES:
        raise ExpressionError(f"has {count} operations and operands; at most {MOST_NODES} are allowed", 1)
    return _Reader(tensors, hidden, start).read(root, 1)


def _check_characters(text: str) -> None:
    if not text.strip():
        raise ExpressionError("is empty; write an expression, such as 'q - k < 1024'", 1)
    if len(text) > LONGEST:
        raise ExpressionError(f"has {len(text)} characters; at most {LONGEST} are allowed", 1)
    odd = next((i for i, char in enumerate(text) if not " " <= char <= "~"), None)
    if odd is not None:
        raise ExpressionError(f"the character U+{ord(text[odd]):04X} is not part of the language", odd + 1)
    if "#" in text:
        raise ExpressionError("a comment is not part of an expression", text.index("#") + 1)


def _syntax_error(text: str, error: Exception, start: int) -> ExpressionError:
    if not isinstance(error, SyntaxError):
        return ExpressionError("is nested too deep", 1)
    column = min((error.offset or len(text) + 1) + start, len(text) + 1)
    reason = (error.msg or "").removeprefix("invalid syntax").split(". ")[0].strip()
    foreign = _FOREIGN_OPERATOR.search(text)
    if foreign:
        return ExpressionError(_FOREIGN[foreign[0]], foreign.start() + 1)
    if "=" in text and not any(sign in text for sign in ("==", "<=", ">=", "!=")):
        return ExpressionError("'=' is not part of the language; '==' compares", text.index("=") + 1)
    return ExpressionError(f"is not an expression{f': {reason}' if reason else ' from here on'}", column)


class _Reader:
    """Converts the ``ast`` nodes of one expression to a typed tree.

    tensors: maps the name of each parameter tensor to its dimension, ``heads`` or ``kv_heads``.
    hidden: names that the expression must not contain, such as the score ``s`` in a mask.
    start: the number of spaces before the expression in its text.
    """

    def __init__(self, tensors: Mapping[str, str], hidden: tuple[str, ...], start: int) -> None:
        self.tensors = tensors
        self.hidden = hidden
        self.start = start

    def read(self, node: ast.expr, depth: int) -> Expression:
        """Convert ``node`` and its child nodes to a typed tree.

        depth: the depth of ``node`` in the expression, starting with 1 for the whole expression.

        Raises ExpressionError for a node that expressions must not contain, and for an expression that is nested too
        deeply.
        """
        if depth > DEEPEST:
            raise self.error(node, f"is nested more than {DEEPEST} deep")
        readers: Mapping[type, Callable[[Any, int], Expression]] = {
            ast.Constant: self.constant,
            ast.Name: self.name,
            ast.Subscript: self.subscript,
            ast.UnaryOp: self.unary,
            ast.BinOp: self.binary,
            ast.BoolOp: self.logic,
            ast.Compare: self.compare,
            ast.IfExp: self.choose,
            ast.Call: self.call,
        }
        reader = readers.get(type(node))
        if reader is None:
            raise self.error(node, _INSTEAD.get(type(node), f"{_called(node)} is not part of the language"))
        try:
            return reader(node, depth + 1)
        except Mistake as mistake:
            raise self.error(node, str(mistake)) from None

    def error(self, node: ast.expr, message: str) -> ExpressionError:
        """Return an ExpressionError with ``message`` and the column of ``node``."""
        return ExpressionError(message, node.col_offset + self.start + 1)

    def operator(self, node: ast.expr, operator: object, known: Mapping[Any, str]) -> str:
        """Return the text of ``operator``, such as ``+``. Raises ExpressionError if ``known`` does not contain the
        operator.

        node: the ``ast`` node that contains the operator.
        operator: an instance of an operator class of ``ast``, such as ``ast.Add``.
        known: maps the class of each allowed operator to the operator's text.
        """
        if type(operator) not in known:
            raise self.error(node, _INSTEAD.get(type(operator), "this operator is not part of the language"))
        return known[type(operator)]

    def constant(self, node: ast.Constant, depth: int) -> Expression:
        """Convert an integer or a float to a literal of the typed tree.

        Raises Mistake for a constant that is neither an integer nor a float.
        """
        if type(node.value) is int:
            return tree.integer(node.value)
        if type(node.value) is float:
            return tree.number(node.value)
        instead = _OTHER_NAMES.get(str(node.value), "it has integers and numbers")
        raise Mistake(f"{quoted(node.value)} is not part of the language; {instead}")

    def name(self, node: ast.Name, depth: int) -> Expression:
        """Convert a name such as ``s`` or ``len`` to a node of the typed tree.

        Raises Mistake for a name that is not in ``NAMES``, and for a name in ``hidden``.
        """
        if node.id in self.hidden:
            raise Mistake(f"a mask does not see the score {node.id}; it decides by q, k, h, kvh and len")
        if node.id in NAMES:
            return NAMES[node.id]
        if node.id in self.tensors:
            raise Mistake(f"{node.id} is a tensor; write {node.id}[{INDEX[self.tensors[node.id]]}]")
        if node.id in FUNCTIONS:
            raise Mistake(f"{node.id} is a function; write {node.id}(...)")
        if node.id in _OTHER_NAMES:
            raise Mistake(f"{quoted(node.id)} is not part of the language; {_OTHER_NAMES[node.id]}")
        known = [*(name for name in NAMES if name not in self.hidden), *self.tensors]
        raise Mistake(f"the name {quoted(node.id)} is unknown; {did_you_mean(node.id, known)}")

    def subscript(self, node: ast.Subscript, depth: int) -> Expression:
        """Convert an element of a parameter tensor, such as ``slopes[h]``, to a node of the typed tree.

        Raises Mistake for a subscript that is not an element of a parameter tensor.
        """
        tensor = node.value.id if isinstance(node.value, ast.Name) else ""
        if tensor not in self.tensors:
            works = f"; {did_you_mean(tensor, self.tensors)}" if self.tensors else "; this modification has no tensors"
            raise Mistake(f"only a parameter tensor has an index{works}")
        index = INDEX[self.tensors[tensor]]
        if not (isinstance(node.slice, ast.Name) and node.slice.id == index):
            raise Mistake(f"{tensor} is [{self.tensors[tensor]}]; its index is {index}: write {tensor}[{index}]")
        return tree.element(tensor)

    def unary(self, node: ast.UnaryOp, depth: int) -> Expression:
        """Convert ``-x`` or ``not x`` to a node of the typed tree."""
        op = self.operator(node, node.op, {ast.USub: "-", ast.Not: "not"})
        x = self.read(node.operand, depth)
        return tree.negate(x) if op == "-" else tree.opposite(x)

    def binary(self, node: ast.BinOp, depth: int) -> Expression:
        """Convert an arithmetic operation with two operands, such as ``a + b``, to a node of the typed tree."""
        op = self.operator(node, node.op, _ARITHMETIC)
        return tree.arithmetic(op, self.read(node.left, depth), self.read(node.right, depth))

    def logic(self, node: ast.BoolOp, depth: int) -> Expression:
        """Convert ``and`` or ``or``, with two or more conditions, to nodes of the typed tree."""
        op = "and" if isinstance(node.op, ast.And) else "or"
        result, *rest = (self.read(value, depth) for value in node.values)
        for x in (result, *rest):
            tree.logic(op, x, x)  # each is a condition, whatever the others are
        for x in rest:
            result = tree.logic(op, result, x)
        return result

    def compare(self, node: ast.Compare, depth: int) -> Expression:
        """Convert a comparison to nodes of the typed tree. As in Python, ``a < b < c`` means ``a < b and b < c``."""
        sides = [self.read(side, depth) for side in (node.left, *node.comparators)]
        ops = [self.operator(node, op, _COMPARISONS) for op in node.ops]
        result = tree.compare(ops[0], sides[0], sides[1])
        for op, a, b in zip(ops[1:], sides[1:-1], sides[2:], strict=True):
            result = tree.logic("and", result, tree.compare(op, a, b))
        return result

    def choose(self, node: ast.IfExp, depth: int) -> Expression:
        """Convert ``a if test else b`` to a node of the typed tree."""
        return tree.choose(self.read(node.test, depth), self.read(node.body, depth), self.read(node.orelse, depth))

    def call(self, node: ast.Call, depth: int) -> Expression:
        """Convert a call of one of ``FUNCTIONS`` to a node of the typed tree.

        Raises Mistake or ExpressionError for a call of a function that is not in ``FUNCTIONS``, and for wrong
        arguments.
        """
        if not isinstance(node.func, ast.Name):
            raise self.error(node, _INSTEAD.get(type(node.func), "only a function can be called"))
        if node.func.id in _OTHER_FUNCTIONS:
            raise Mistake(_OTHER_FUNCTIONS[node.func.id])
        if node.func.id not in FUNCTIONS:
            raise Mistake(f"the function {quoted(node.func.id)} is unknown; {did_you_mean(node.func.id, FUNCTIONS)}")
        if node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            raise Mistake(f"{node.func.id}() takes its arguments by position")
        return tree.call(node.func.id, tuple(self.read(arg, depth) for arg in node.args))


def _called(node: ast.expr) -> str:
    """Return the class name of ``node`` for an error message, such as ``a listcomp``."""
    return f"a {type(node).__name__.lower()}"
