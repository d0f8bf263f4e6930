"""Translates a typed expression tree to PyTorch statements that compute the expression for all elements of a score
tensor.

``DIMENSIONS`` lists the dimensions of the score tensor in a decode kernel. ``EXTEND_DIMENSIONS`` lists the dimensions
of the score tensor in an extend kernel. Each operation of the expression gives a tensor with as many dimensions as the
score tensor. A dimension has size 1 if the value of the operation does not vary over this dimension.

A value that varies over KV heads and tokens can be as large as the score tensor. The statements store such a value in a
slot, that is, a buffer in the workspace that later values can use again. Each statement makes at most one ATen call
that does not return a view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pav2gen.family.modifications.tree import CONDITION, INTEGER, MIRRORED, NUMBER, Expression, opposite, walk

DTYPES = {INTEGER: "int32", NUMBER: "float32", CONDITION: "bool"}

#: The dimensions of the scores in a decode kernel: sequences, partitions, KV heads, query heads of a KV head, tokens of
#: a partition.
DIMENSIONS = ("row", "part", "kv_head", "head", "token")

#: The dimensions of the scores in an extend kernel. ``row`` counts query tiles (consecutive new tokens of one
#: sequence), and ``query`` counts the tokens in a query tile.
EXTEND_DIMENSIONS = ("row", "part", "kv_head", "query", "head", "token")

#: Maps a name in an expression, or the dimension of a parameter tensor, to the dimensions of the scores over which its
#: value varies. ``k by row`` is k in a kernel with a sliding window, where the first partition of each sequence begins
#: at a different position. Names with ``by query`` are for extend kernels.
REACH: Mapping[str, frozenset[str]] = {
    "s": frozenset(DIMENSIONS),
    "s by query": frozenset(EXTEND_DIMENSIONS),
    "q": frozenset(("row",)),
    "q by query": frozenset(("row", "query")),
    "k": frozenset(("part", "token")),
    "k by row": frozenset(("row", "part", "token")),
    "len": frozenset(("row",)),
    "h": frozenset(("kv_head", "head")),
    "kvh": frozenset(("kv_head",)),
    "heads": frozenset(("kv_head", "head")),
    "kv_heads": frozenset(("kv_head",)),
}

_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_INFIX = {"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "div", "%": "remainder"}


@dataclass(frozen=True)
class TorchText:
    """The PyTorch statements that compute an expression, and the costs of the statements.

    lines: the statements, one per line.
    result: the PyTorch code that reads the value of the expression after the statements have run.
    calls: the number of ATen calls that the statements make, except calls that return views.
    slots: the number of workspace buffers that the statements use, each as large as the score tensor.
    token_values: the number of new tensors for values that vary over tokens, but not over KV heads.
    names: the names and parameter tensors that the statements read.
    """

    lines: tuple[str, ...]
    result: str
    calls: int
    slots: int
    token_values: int
    names: frozenset[str]


def score_text(
    x: Expression,
    names: Mapping[str, str],
    tensors: Mapping[str, str],
    slots: str,
    dimensions: Sequence[str] = DIMENSIONS,
) -> TorchText:
    """Return the statements that overwrite the score tensor with the value of the expression ``x``.

    names: maps each name and each parameter tensor in ``x`` to the PyTorch code that reads its value. The code for
    ``s`` reads the score tensor. All other tensors must broadcast to the shape of the score tensor.
    tensors: maps each parameter tensor to its dimension, ``heads`` or ``kv_heads``. If a name such as ``k`` varies over
    more dimensions than ``REACH`` says, ``tensors`` maps the name to another key of ``REACH``, such as ``k by row``.
    slots: the PyTorch code that reads a workspace buffer as large as the score tensor, with {} in place of the buffer's
    number.
    dimensions: the names of the dimensions of the score tensor, in their order.
    """
    writer = _Writer(_normal(x), names, tensors, slots, names["s"], dimensions)
    result = writer.text(writer.root)
    if result != names["s"]:
        writer.emit(f"{names['s']}.{'fill_' if x.is_literal else 'copy_'}({result})")
    return writer.finish(names["s"])


def hidden_text(
    mask: Expression,
    names: Mapping[str, str],
    tensors: Mapping[str, str],
    slots: str,
    dimensions: Sequence[str] = DIMENSIONS,
) -> TorchText:
    """Return the statements that compute a bool tensor, which is true where ``mask`` hides a key from a query.

    The bool tensor broadcasts to the shape of the score tensor. ``score_text`` describes the parameters other than
    ``mask``.
    """
    writer = _Writer(_normal(opposite(mask)), names, tensors, slots, "scores", dimensions)
    return writer.finish(writer.text(writer.root))


def reach_of(x: Expression, tensors: Mapping[str, str]) -> frozenset[str]:
    """Return the dimensions of the score tensor over which the value of ``x`` varies.

    tensors: the parameter ``tensors`` of ``score_text``.
    """
    if x.op in ("name", "element"):
        return REACH[tensors.get(str(x.value), str(x.value))]
    return frozenset().union(*(reach_of(arg, tensors) for arg in x.args))


def _normal(x: Expression) -> Expression:
    """Return an equivalent tree, with literals as second operands and in the true branch of ``if`` where possible."""
    # A literal stays first where the operands cannot be exchanged, as in ``1 - s``.
    args = tuple(map(_normal, x.args))
    if x.op == "if" and args[2].is_literal and not args[1].is_literal:
        return replace(x, args=(_normal(opposite(args[0])), args[2], args[1]))
    if len(args) == 2 and args[0].is_literal:
        if x.op in MIRRORED:
            return replace(x, op=MIRRORED[x.op], args=args[::-1])
        if x.op in _COMMUTATIVE:
            return replace(x, args=args[::-1])
    return replace(x, args=args)


@dataclass(frozen=True)
class _Value:
    """The place where generated code stores the value of an expression.

    text: the PyTorch code that reads the value.
    slot: the number of the workspace buffer that stores the value, -1 for the score tensor, or None for a literal or
    any other tensor.
    owned: whether a statement may overwrite the value.
    """

    text: str
    slot: int | None = None
    owned: bool = False


class _Writer:
    """Writes the PyTorch statements for one expression tree. A subtree that occurs several times is computed only once.

    root: the tree.
    names, tensors, slots, dimensions: the parameters of ``score_text`` with these names.
    scores: the PyTorch code that reads the score tensor.
    """

    def __init__(
        self,
        root: Expression,
        names: Mapping[str, str],
        tensors: Mapping[str, str],
        slots: str,
        scores: str,
        dimensions: Sequence[str],
    ) -> None:
        self.root = root
        self.names = names
        self.tensors = tensors
        self.slots = slots
        self.scores = scores
        self.dimensions = dimensions
        self.lines: list[str] = []
        self.calls = self.slot_count = self.token_values = self.temporaries = 0
        self.values: dict[Expression, _Value] = {}
        self.uses: Counter[Expression] = Counter()  # uses by operations that are not written yet
        for node in set(walk(root)):
            self.uses.update(node.args)
        reads_scores = any(node.op == "name" and node.value == "s" for node in walk(root))
        self.free: list[int] = [] if reads_scores or root.type == CONDITION else [-1]

    def finish(self, result: str) -> TorchText:
        """Return all statements of the expression tree, and their costs.

        result: the PyTorch code that reads the value of the tree.
        """
        leaves = (str(node.value) for node in walk(self.root) if node.op in ("name", "element"))
        return TorchText(
            lines=tuple(self.lines),
            result=result,
            calls=self.calls,
            slots=self.slot_count,
            token_values=self.token_values,
            names=frozenset(leaves),
        )

    def emit(self, line: str, calls: int = 1) -> None:
        """Append the statement ``line``, which makes ``calls`` ATen calls."""
        self.lines.append(line)
        self.calls += calls

    def text(self, x: Expression) -> str:
        """Return the PyTorch code that reads the value of ``x``.

        The first call of this method for an expression also writes the statements that compute the expression.
        """
        if x not in self.values:
            self.values[x] = self.leaf(x) if not x.args else self.operation(x)
        return self.values[x].text

    def leaf(self, x: Expression) -> _Value:
        """Return the place where the value of ``x`` is stored.

        x: a node without operands, that is, a literal, a name, or an element of a parameter tensor.
        """
        if x.is_literal:
            return _Value(repr(x.value))
        if x.value == "s" and x.op == "name":
            return _Value(self.scores, slot=-1, owned=True)
        return _Value(self.names[str(x.value)])

    def operation(self, x: Expression) -> _Value:
        """Write the statements for the operation ``x`` and for its operands.

        Return the place where these statements store the result.
        """
        fused = self.fused(x) if x.op in ("+", "-") else None
        if fused is not None:
            return fused
        for arg in x.args:
            self.text(arg)
        if x.op == "if":
            return self.choose(x)
        if x.op == "float":
            return self.functional(x, f"{self.text(x.args[0])}.float()", f"copy_({self.text(x.args[0])})")
        if x.args[0].is_literal:
            return self.literal_first(x)
        return self.plain(x)

    def fused(self, x: Expression) -> _Value | None:
        """Write ``a + b * c`` or ``a - b * c`` as one call that overwrites ``a``, and return the place where ``a`` is
        stored.

        If ``x`` has another form, or if no statement may overwrite ``a``, this method does not write the call and
        returns None.
        """
        for a, product in (x.args, x.args[::-1]) if x.op == "+" else (x.args,):
            fits = product.op == "*" and x.type == NUMBER and self.uses[product] == 1 and product not in self.values
            if not fits or self.reusable(a, x) is None:
                continue
            b, c = map(self.text, product.args)
            target = self.text(a)
            sign = "-" if x.op == "-" else ""
            if product.args[1].is_literal:
                scale = -product.args[1].value if sign else product.args[1].value  # type: ignore[operator]
                self.emit(f"{target}.add_({b}, alpha={scale!r})")
            else:
                self.emit(f"{target}.addcmul_({b}, {c}{', value=-1' if sign else ''})")
            kept = self.values[a]
            self.consume((a, *product.args), kept)
            return kept
        return None

    def reusable(self, arg: Expression, x: Expression) -> _Value | None:
        """Return the place where the operand ``arg`` of ``x`` is stored, or None if the result must not overwrite
        ``arg``.
        """
        if arg.is_literal or arg.type != x.type or reach_of(arg, self.tensors) != reach_of(x, self.tensors):
            return None
        if self.uses[arg] > 1:
            return None
        self.text(arg)
        return self.values[arg] if self.values[arg].owned else None

    def plain(self, x: Expression) -> _Value:
        """Write a call for the operation ``x``, which has a tensor as its first operand.

        Return the place where this call stores the result.
        """
        function, options = _function(x)
        order = x.args
        kept = self.reusable(order[0], x)
        if kept is None and len(order) == 2 and x.op in _COMMUTATIVE:
            kept = self.reusable(order[1], x)
            order = order[::-1] if kept is not None else order
        first, *rest = [*map(self.text, order), *options]
        if kept is None:
            given = ", ".join((first, *rest))
            return self.functional(x, f"torch.{function}({given})", f"torch.{function}({given}, out=", out=True)
        if function in ("minimum", "maximum"):  # they have no in-place form
            self.emit(f"torch.{function}({first}, {rest[0]}, out={first})")
        else:
            self.emit(f"{first}.{function}_({', '.join(rest)})")
        self.consume(x.args, kept)
        return kept

    def literal_first(self, x: Expression) -> _Value:
        """Write an operation on a literal and a tensor, such as ``1 - s``, and return the place of the result."""
        literal, b = map(self.text, x.args)
        if x.op in ("-", "/"):
            first, then = ("neg", "add_") if x.op == "-" else ("reciprocal", "mul_")
            value = self.reusable(x.args[1], x)
            if value is None:
                value = self.functional(x, f"torch.{first}({b})", f"torch.{first}({b}, out=", out=True)
            else:
                self.emit(f"{b}.{first}_()")
                self.consume(x.args, value)
            self.emit(f"{value.text}.{then}({literal})")
            return value
        function, options = _function(x)
        held = self.allocate(x)
        self.assign(held, f"torch.full_like({b}, {literal})", f"fill_({literal})")
        self.emit(f"{held.text}.{function}_({', '.join((b, *options))})")
        self.consume(x.args)
        return held

    def choose(self, x: Expression) -> _Value:
        """Write the statements for ``x``, an expression ``a if test else b``.

        Return the place where these statements store the result.
        """
        test, a, b = map(self.text, x.args)
        # After ``_normal``, only ``a`` is a literal, both ``a`` and ``b`` are literals, or neither is.
        if not x.args[1].is_literal:
            given = f"{test}, {a}, {b}"
            return self.functional(x, f"torch.where({given})", f"torch.where({given}, out=", out=True)
        if x.args[2].is_literal:
            held = self.allocate(x)
            self.assign(held, f"torch.full_like({test}, {b}, dtype=torch.{DTYPES[x.type]})", f"fill_({b})")
        else:
            held = self.reusable(x.args[2], x) or self.allocate(x)
            if held is not self.values[x.args[2]] and held.slot is None:
                self.emit(f"{held.text} = {b}.masked_fill({test}, {a})")
                self.consume(x.args)
                return held
            if held is not self.values[x.args[2]]:
                self.emit(f"{held.text}.copy_({b})")
        self.emit(f"{held.text}.masked_fill_({test}, {a})")
        self.consume(x.args, held)
        return held

    def functional(self, x: Expression, small: str, large: str, out: bool = False) -> _Value:
        """Write the call that computes ``x``, and return the new place where this call stores the value.

        small: the code of a call that returns the value as a new tensor.
        large: the code of a call that stores the value in an existing tensor, that is, in a workspace buffer or in the
        score tensor.
        out: whether ``large`` ends in ``out=``, so that the name of the existing tensor follows; otherwise, ``large``
        is a call of a method of the existing tensor.
        """
        held = self.allocate(x)
        self.assign(held, small, large, out)
        self.consume(x.args)
        return held

    def assign(self, held: _Value, small: str, large: str, out: bool = False) -> None:
        """Write the statement that computes a value and stores the value in the place ``held``.

        small, large, out: the parameters of ``functional`` with these names.
        """
        if held.slot is None:
            self.emit(f"{held.text} = {small}")
        else:
            self.emit(f"{large}{held.text})" if out else f"{held.text}.{large}")

    def allocate(self, x: Expression) -> _Value:
        """Return a place for the value of ``x``: the score tensor, if free, a new tensor, or a workspace buffer."""
        reach = reach_of(x, self.tensors)
        large = "token" in reach and "kv_head" in reach
        if -1 in self.free and x.type == NUMBER and len(reach) == len(self.dimensions):
            self.free.remove(-1)
            return _Value(self.scores, slot=-1, owned=True)
        name = f"t{self.temporaries}"
        self.temporaries += 1
        if not large:
            self.token_values += "token" in reach
            return _Value(name, owned=True)
        slots = [slot for slot in self.free if slot >= 0]
        slot = min(slots, default=self.slot_count)
        self.slot_count = max(self.slot_count, slot + 1)
        self.free = [other for other in self.free if other != slot]
        sizes = (f"{self.scores}.shape[{i}]" if name in reach else "1" for i, name in enumerate(self.dimensions))
        shape = f"*{self.scores}.shape" if len(reach) == len(self.dimensions) else ", ".join(sizes)
        self.emit(f"{name} = {self.slots.format(slot)}.view(torch.{DTYPES[x.type]}, {shape})", calls=0)
        return _Value(name, slot=slot, owned=True)

    def consume(self, args: Sequence[Expression], kept: _Value | None = None) -> None:
        """Record that an operation has used its operands ``args``.

        If no later operation uses an operand, later values can use the operand's workspace buffer.

        kept: if the operation's result overwrites an operand, the place of the result, which later values cannot use.
        """
        for arg in args:
            self.uses[arg] -= 1
            value = self.values[arg]
            if self.uses[arg] == 0 and value.slot is not None and (kept is None or value.slot != kept.slot):
                self.free.append(value.slot)


_COMMUTATIVE = ("+", "*", "min", "max", "and", "or")


def _function(x: Expression) -> tuple[str, tuple[str, ...]]:
    """Return the name of the torch function for the operation ``x``, and the arguments that follow the operands."""
    if x.op in ("min", "max"):
        return ("clamp_" + ("max" if x.op == "min" else "min"), ()) if x.args[1].is_literal else (f"{x.op}imum", ())
    names = {**_COMPARE, **_INFIX, "and": "logical_and", "or": "logical_or", "not": "logical_not"}
    return names.get(x.op, x.op), ('rounding_mode="floor"',) if x.op == "//" else ()
