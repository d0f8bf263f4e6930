"""Finds functions, methods, calls and other parts in the syntax tree of a Python module."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Method(NamedTuple):
    """A definition of a method.

    owner: the class whose body contains the definition.
    function: the definition.
    """

    owner: ast.ClassDef
    function: ast.FunctionDef


def functions(body: Iterable[ast.stmt], name: str) -> Iterator[ast.FunctionDef]:
    """Yield the functions named ``name`` in a block of statements and in nested blocks, such as the branches of an
    ``if``.

    The bodies of functions and classes are not searched.
    """
    for statement in _in_same_scope(body):
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            yield statement


def classes(body: Iterable[ast.stmt]) -> Iterator[ast.ClassDef]:
    """Yield the classes in a block of statements and in nested blocks, such as the branches of an ``if``.

    The bodies of classes and functions are not searched.
    """
    for statement in _in_same_scope(body):
        if isinstance(statement, ast.ClassDef):
            yield statement


def methods(tree: ast.Module, owner: str, name: str) -> list[Method]:
    """Return every definition of the method ``name`` in the classes of a module that are called ``owner``."""
    owners = [found for found in classes(tree.body) if found.name == owner]
    return [Method(found, function) for found in owners for function in functions(found.body, name)]


def overrides(tree: ast.Module, owner: str, name: str) -> list[Method]:
    """Return every definition of the method ``name`` in direct and indirect subclasses of ``owner`` in a module."""
    bases, found = {owner}, []
    for each in classes(tree.body):
        if each.name != owner and any(_last_name(base) in bases for base in each.bases):
            bases.add(each.name)
            found += [Method(each, function) for function in functions(each.body, name)]
    return found


def only_delegates(method: Method) -> bool:
    """Whether a method does nothing but call a method of the same name, in one statement."""
    body = [statement for statement in method.function.body if not _does_nothing(statement)]
    return len(body) == 1 and has_call(body, method.function.name)


def rebinding(tree: ast.Module, name: str, owner: str = "") -> ast.stmt | None:
    """Return a statement that replaces the definition of ``name`` with another value, or None if no statement does.

    Such a statement assigns to ``name``, imports ``name``, or sets ``name`` by ``setattr``. A value that uses the
    definition, such as ``staticmethod(name)``, does not count.

    owner: the class that defines ``name``, or empty if the module defines it. Statements that give another value to
    this class count too.
    """
    for statement in _in_same_scope(tree.body):
        if _binds(statement, owner or name) or (owner and _sets_attribute(statement, owner, name)):
            return statement
    bodies = [each.body for each in classes(tree.body) if each.name == owner]
    return next((each for body in bodies for each in _in_same_scope(body) if _binds(each, name)), None)


def blocks(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks directly in a compound statement, such as the branches of an ``if``, as lists of statements."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, None)
        if isinstance(block, list):
            yield block
    for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield handler.body


def only_raises(function: ast.FunctionDef) -> bool:
    """Whether a function is a stub, which does nothing or only raises an error.

    A function only raises an error if it ends in ``raise`` or ``assert False``, and has no ``return`` and no nested
    block.
    """
    return block_only_raises(function.body)


def block_only_raises(block: Iterable[ast.stmt]) -> bool:
    """Whether a function with the body ``block`` would be a stub, as in ``only_raises``."""
    body = [statement for statement in block if not _does_nothing(statement)]
    if not body:
        return True
    last = body[-1]
    never = isinstance(last, ast.Assert) and isinstance(last.test, ast.Constant) and not last.test.value
    return (isinstance(last, ast.Raise) or never) and not any(map(_branches, body))


def parameters(function: ast.FunctionDef) -> dict[str, str]:
    """Return a dict from each parameter of a function to the source text of its default, or to "" if it has none."""
    args = function.args
    positional = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    found = dict.fromkeys(positional, "")
    found.update(zip(positional[len(positional) - len(args.defaults) :], map(ast.unparse, args.defaults)))
    found.update({a.arg: ast.unparse(d) if d else "" for a, d in zip(args.kwonlyargs, args.kw_defaults)})
    return found


def calls(body: Iterable[ast.AST], name: str) -> Iterator[ast.Call]:
    """Yield the calls of ``name`` or ``anything.name`` in the nodes ``body``, at any depth."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _last_name(node.func) == name:
                yield node


def has_call(body: Iterable[ast.AST], *names: str) -> bool:
    """Whether the nodes ``body`` contain, at any depth, a call of a function with one of the names ``names``."""
    nodes = list(body)
    return any(True for name in names for _ in calls(nodes, name))


def names_in_calls(body: Iterable[ast.AST], name: str) -> set[str]:
    """Return the names of the variables in the arguments of all calls of the function ``name`` in ``body``."""
    return {
        node.id
        for call in calls(body, name)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for node in ast.walk(argument)
        if isinstance(node, ast.Name)
    }


def imports(tree: ast.Module, package: str) -> bool:
    """Whether a module imports ``package``, or something from it, anywhere in its code."""
    names = [
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    return any(name.split(".")[0] == package for name in names)


def elif_chain(statement: ast.If) -> Iterator[ast.If]:
    """Yield an ``if`` statement, and then each of its ``elif`` statements."""
    yield statement
    while has_elif(statement):
        statement = statement.orelse[0]  # type: ignore[assignment]
        yield statement


def has_elif(statement: ast.If) -> bool:
    """Whether the else branch of ``statement`` is an ``elif``."""
    block = statement.orelse
    return len(block) == 1 and isinstance(block[0], ast.If) and block[0].col_offset == statement.col_offset


def _in_same_scope(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a block and of nested blocks, except statements in bodies of functions and classes."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for block in blocks(statement):
                yield from _in_same_scope(block)


def _binds(statement: ast.stmt, name: str) -> bool:
    """Whether a statement imports ``name``, or assigns to ``name`` a value that does not mention ``name``."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) == name for alias in statement.names)
    bound = any(isinstance(target, ast.Name) and target.id == name for target in _targets(statement))
    return bound and not _mentions(getattr(statement, "value", None), name)


def _mentions(value: ast.AST | None, name: str) -> bool:
    """Whether an expression contains ``name`` or ``anything.name``."""
    return value is not None and any(_last_name(node) == name for node in ast.walk(value))


def _sets_attribute(statement: ast.stmt, owner: str, name: str) -> bool:
    """Whether a statement sets ``owner.name``, by an assignment or by ``setattr``.

    An assignment of a value that mentions ``name`` does not count.
    """
    assigned = any(
        isinstance(target, ast.Attribute) and target.attr == name and _last_name(target.value) == owner
        for target in _targets(statement)
    )
    given = statement.value if isinstance(statement, ast.Expr) else None
    if not (isinstance(given, ast.Call) and _last_name(given.func) == "setattr" and len(given.args) > 1):
        return assigned and not _mentions(getattr(statement, "value", None), name)
    what = given.args[1]
    return _last_name(given.args[0]) == owner and isinstance(what, ast.Constant) and what.value == name


def _targets(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions to which a statement assigns: for a tuple, the tuple and its elements."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from (node for node in ast.walk(target) if isinstance(node, ast.expr))
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        yield statement.target


def _last_name(node: ast.AST) -> str:
    """Return "name" for the expression ``name`` or ``anything.name``, and "" for any other expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether a statement is a constant such as a docstring or ``...``, or ``pass``, ``return`` or ``return None``."""
    if isinstance(statement, ast.Return):
        return statement.value is None or (isinstance(statement.value, ast.Constant) and statement.value.value is None)
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass)


def _branches(statement: ast.stmt) -> bool:
    """Whether a statement is a ``return``, or contains blocks of statements."""
    return isinstance(statement, ast.Return) or any(True for _ in blocks(statement))
