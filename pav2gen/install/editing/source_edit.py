"""Inserts lines into Python source files of vLLM, and replaces conditions of ``if`` statements.

Every other byte of a file stays as it is, including the byte order mark, line ends, indentation and comments.
"""

from __future__ import annotations

import ast
import codecs
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from pav2gen.errors import UserError


@dataclass(frozen=True)
class SourceFile:
    """A Python source file.

    where: the name that messages give to the file.
    text: the content without the byte order mark.
    bom: the byte order mark, or empty.
    tree: the syntax tree of ``text``.
    """

    where: str
    text: str
    bom: bytes
    tree: ast.Module

    @classmethod
    def parse(cls, content: bytes, where: str) -> SourceFile:
        """Parse ``content``, the bytes of a file. Raises UserError if ``content`` is not UTF-8 or not valid Python.

        where: the name that messages give to the file.
        """
        bom = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
        try:
            text = content[len(bom) :].decode()
            return cls(where, text, bom, ast.parse(text))
        except UnicodeDecodeError as error:
            raise UserError(f"is not UTF-8 (byte {error.start})", where) from error
        except (SyntaxError, ValueError) as error:
            raise UserError(f"is not Python ({getattr(error, 'msg', error)})", where) from error


class Insertion(NamedTuple):
    """Lines to insert into a source file, and a comment to put above these lines.

    at: the line number of a ``def`` or an ``if``. The lines are inserted into this function, or above this ``if``.
    place: "start" or "end" for the start or the end of the function's body, or "before" for above the ``if``.
    comment: the text of the comment, without ``#``.
    lines: Python statements, as source text without indentation.
    """

    at: int
    place: str
    comment: str
    lines: str


def insert_lines(source: SourceFile, insertions: Sequence[Insertion], tests: Mapping[int, str] = {}) -> bytes:
    """Return the bytes of ``source`` with all ``insertions``, and with the new conditions in ``tests``.

    tests: maps the line number of an ``if`` or ``elif`` to the name that replaces its condition. In the inserted lines,
    the name ``TEST`` is a placeholder for the condition that was replaced.

    Raises UserError if the place of an insertion is not found, or if libcst cannot reproduce the code around this place
    exactly.
    """
    lines = list(io.StringIO(source.text, newline=""))
    for statement in reversed(source.tree.body):  # libcst parses only the statements that change
        first, last = _lines_of(statement)
        within = [
            insertion._replace(at=insertion.at - first + 1) for insertion in insertions if first <= insertion.at <= last
        ]
        if within:
            renamed = {line - first + 1: name for line, name in tests.items() if first <= line <= last}
            lines[first - 1 : last] = [_edited("".join(lines[first - 1 : last]), within, renamed, source.where)]
    text = "".join(lines)
    compile(text, source.where, "exec", dont_inherit=True)
    return source.bom + text.encode()


def _lines_of(statement: ast.stmt) -> tuple[int, int]:
    """Return the numbers of the first and the last line of a statement, including its decorators."""
    decorators = getattr(statement, "decorator_list", ())
    return min(node.lineno for node in (statement, *decorators)), statement.end_lineno or statement.lineno


def _edited(text: str, insertions: Sequence[Insertion], tests: Mapping[int, str], where: str) -> str:
    """Return ``text``, one top-level statement, with the ``insertions`` and the new conditions of ``tests``.

    Line numbers count from the first line of this statement, which is line 1.
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise UserError(f"libcst cannot read it ({error.message})", where) from error
    editor = _Editor(module, insertions, tests)
    edited = MetadataWrapper(module, unsafe_skip_copy=True).visit(editor).code
    if module.code != text or editor.pending:
        raise UserError("has text that libcst would change; nothing was edited", where)
    return edited


class _Editor(cst.CSTTransformer):
    """A libcst transformer that inserts lines and replaces conditions.

    pending: the line numbers of the insertions and conditions that have not been found yet.
    """

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, module: cst.Module, insertions: Sequence[Insertion], tests: Mapping[int, str]) -> None:
        super().__init__()
        self._config = module.config_for_parsing
        self._tests = tests
        self._test: cst.BaseExpression = cst.Name("TEST")
        self._insertions = {(insertion.at, insertion.place): insertion for insertion in insertions}
        self.pending = {insertion.at for insertion in insertions} | tests.keys()

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        line = self._line(original_node.name)
        body = _block(updated_node.body)
        if start := self._take(line, "start"):
            first = 1 if updated_node.get_docstring(clean=False) is not None else 0
            body = body.with_changes(body=[*body.body[:first], *start, *body.body[first:]])
        if end := self._take(line, "end"):
            body = body.with_changes(body=[*body.body, *end])
        return updated_node.with_changes(body=body) if start or end else updated_node

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        line = self._line(original_node)
        if line not in self._tests:
            return updated_node
        self.pending.discard(line)
        self._test = updated_node.test
        if isinstance(self._test, cst.Name) and self._test.value == self._tests[line]:
            return updated_node
        return updated_node.with_changes(
            test=cst.Name(self._tests[line]), whitespace_before_test=cst.SimpleWhitespace(" ")
        )

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body: list[cst.BaseStatement] = []
        for original, updated in zip(original_node.body, updated_node.body, strict=True):
            if isinstance(original, cst.If) and isinstance(updated, cst.If):
                before = self._take(self._line(original), "before")
                if before:  # blank lines above the if stay above the inserted lines
                    lines = [*updated.leading_lines]
                    blank = next((i for i, line in enumerate(lines) if line.comment), len(lines))
                    before[0] = before[0].with_changes(leading_lines=[*lines[:blank], *before[0].leading_lines])
                    updated = updated.with_changes(leading_lines=lines[blank:])
                body += before
            body.append(updated)
        return updated_node.with_changes(body=body)

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(PositionProvider, node).start.line)

    def _take(self, line: int, place: str) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
        """Return the statements to insert at ``place`` of the ``def`` or ``if`` on ``line``, and mark these statements
        as inserted.

        The list is empty if there is nothing to insert.
        """
        insertion = self._insertions.pop((line, place), None)
        if insertion is None:
            return []
        self.pending.discard(line)
        first, *rest = cst.parse_module(insertion.lines, config=self._config).body
        comment = cst.EmptyLine(comment=cst.Comment(f"# {insertion.comment}"))
        statements = [first.with_changes(leading_lines=[comment]), *rest]
        return [statement.visit(_Test(self._test)) for statement in statements]  # type: ignore[misc]


class _Test(cst.CSTTransformer):
    """A libcst transformer that replaces each name ``TEST`` with the expression ``test``."""

    def __init__(self, test: cst.BaseExpression) -> None:
        super().__init__()
        self._test = test

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._test.deep_clone() if original_node.value == "TEST" else updated_node


def _block(suite: cst.BaseSuite) -> cst.IndentedBlock:
    """Return ``suite``, the body of a function, as an indented block, even if ``suite`` is on the same line as the
    ``def``.
    """
    if isinstance(suite, cst.IndentedBlock):
        return suite
    assert isinstance(suite, cst.SimpleStatementSuite)
    line = cst.SimpleStatementLine(body=suite.body, trailing_whitespace=suite.trailing_whitespace)
    return cst.IndentedBlock(body=[line])
