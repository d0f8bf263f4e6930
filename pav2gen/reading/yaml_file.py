"""Parses YAML into nodes that know their file and line. The caller then reads each node as the type that it expects.

Only a strict subset of YAML is accepted, so that all YAML parsers read a file in the same way. The subset has only one
document, and no anchors, aliases, tags, merge keys or tabs. When a caller reads a node as a type, values that versions
of YAML read as different types (``yes``, ``010``, ``1:30``) are refused.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from typing import Any

import yaml

from pav2gen.errors import UserError
from pav2gen.reading.yaml_node import Node
from pav2gen.wording import did_you_mean, quoted

MAX_BYTES = 64 << 10
MAX_DEPTH = 8
MAX_KEY_LENGTH = 64

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_file(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Read the bytes of the regular file at ``path``. Raises UserError if the file cannot be read or is larger than
    ``max_bytes``.
    """
    name = os.fspath(path)
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):
            kind = "a folder" if os.path.isdir(name) else "not a regular file"
            raise UserError(f"is {kind}; name a file", printable(name))
        with open(name, "rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise UserError(f"there is no such file{_neighbour(name)}", printable(name)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot be read: {reason}; check the path and its permissions", printable(name)) from None
    if len(data) > max_bytes:
        raise UserError(f"is larger than {max_bytes >> 10} KiB; is it the right file?", printable(name))
    return data


def parse_yaml(data: bytes, file: str) -> Node:
    """Parse the YAML document in ``data``. ``file`` is its path, for messages.

    Raises UserError, with ``file:line``, if ``data`` is not UTF-8, not YAML, or not in the accepted subset.
    """
    file = printable(file)
    text = decode(data, file)
    parser = _Parser(text)
    try:
        return _Composer(parser, file).document()
    except yaml.MarkedYAMLError as error:
        last_line = max(1, len(text.splitlines()))
        mark = error.problem_mark or error.context_mark
        line = min(mark.line + 1, last_line) if mark else 1
        raise UserError(_syntax_message(error, line), f"{file}:{line}") from None
    finally:
        parser.dispose()


def decode(data: bytes, file: str) -> str:
    """Decode ``data`` as UTF-8 text. Raises UserError for invalid UTF-8, a byte-order mark, a tab or a control
    character. ``file`` is the path of the file, for messages.
    """
    if data.startswith(codecs.BOM_UTF8):
        raise UserError("starts with a byte-order mark; save it as UTF-8 without one", f"{file}:1")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise UserError(message, f"{file}:{line}") from None
    for number, line_text in enumerate(text.split("\n"), start=1):
        odd = next((char for char in line_text.removesuffix("\r") if not char.isprintable()), None)
        if odd is not None:
            what = "a tab; indent with spaces" if odd == "\t" else f"the character U+{ord(odd):04X}; remove it"
            raise UserError(f"contains {what}", f"{file}:{number}")
    return text


def printable(name: str) -> str:
    """Return the path ``name`` as messages show it: on one line, with escapes in place of characters that cannot be
    printed.
    """
    return name if name.isprintable() else ascii(name)


def _neighbour(name: str) -> str:
    """The end of the message that the file at ``name`` is missing. It suggests the most similar file name in the same
    folder. Empty if no file name is similar.
    """
    folder, base = os.path.split(name)
    kind = os.path.splitext(base)[1] or ".yaml"
    try:
        names = [entry for entry in os.listdir(folder or ".") if entry.endswith(kind) and entry.isprintable()]
    except OSError:
        return ""
    clause = did_you_mean(base, names) if names else ""
    return f"; {clause}" if clause.startswith("did") else ""


def _syntax_message(error: yaml.MarkedYAMLError, line: int) -> str:
    """The message for a syntax error: the parser's description, the line on which the surrounding construct begins (if
    it is not ``line``, the line of the error), and advice.
    """
    problem = (error.problem or "it does not parse").replace(" in this context", " here")[:80]
    start = error.context_mark.line + 1 if error.context_mark else line
    began = f", {error.context} from line {start}" if start != line else ""
    if "mapping values are not allowed" in problem:
        advice = "put a text with ': ' in quotes, and check the indentation"
    else:
        advice = "check the indentation, the brackets and the quotes"
    return f"not YAML: {problem}{began}; {advice}"


class _Composer:
    """Builds nodes from the events of a YAML parser. A YAML alias is refused before it is expanded."""

    def __init__(self, parser: Any, file: str) -> None:
        self.parser = parser
        self.file = file

    def document(self) -> Node:
        """Read the file's only document. Returns its root. Raises UserError if the file is empty or has a second
        document.
        """
        self.parser.get_event()
        root = self.value("", None, 0) if isinstance(self.parser.get_event(), yaml.DocumentStartEvent) else None
        if root is None or root.is_null():
            raise UserError("is empty; write 'schema: 1' into the first line", f"{self.file}:1")
        self.parser.get_event()
        after = self.parser.get_event()
        if not isinstance(after, yaml.StreamEndEvent):
            raise self.error(after, "a second document begins; a spec is one document: remove the '---'")
        return root

    def value(self, name: str, key_line: int | None, depth: int) -> Node:
        """Read the value that begins with the parser's next event. Returns its node.

        ``name`` is the value's dotted path. ``key_line`` is the line of the value's key, or None for a value without a
        key. The node gets the line of the key. ``depth`` is the number of lists and mappings around the value.
        """
        event = self.parser.get_event()
        self.refuse_references(event)
        line = key_line or event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            return Node(self.file, line, name, event.value, plain=not event.style, column=_column(event, line))
        if depth == MAX_DEPTH:
            raise self.error(event, f"nested more than {MAX_DEPTH} deep; a spec needs no more than 4")
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(self.file, line, name, tuple(self.items(name, depth + 1)))
        return Node(self.file, line, name, self.fields(name, depth + 1))

    def items(self, name: str, depth: int) -> Iterator[Node]:
        """Read the items of a list up to the event that ends the list. The event that begins the list has been read
        already.

        ``name`` is the list's dotted path. ``depth`` is the number of lists and mappings around each item.
        """
        while not self.parser.check_event(yaml.SequenceEndEvent):
            yield self.value(name, None, depth)
        self.parser.get_event()

    def fields(self, name: str, depth: int) -> dict[str, Node]:
        """Read the fields of a mapping up to the event that ends the mapping. The event that begins the mapping has
        been read already. Raises UserError for a repeated key.

        ``name`` is the mapping's dotted path. ``depth`` is the number of lists and mappings around each field.
        """
        fields: dict[str, Node] = {}
        while not self.parser.check_event(yaml.MappingEndEvent):
            key = self.value(name, None, depth)
            if not isinstance(key.value, str) or len(key.value) > MAX_KEY_LENGTH:
                raise key.fail(f"a key must be a word of at most {MAX_KEY_LENGTH} characters")
            if key.plain and key.value == "<<":
                raise key.fail("merge keys (<<) are not supported; write the values out")
            if key.value in fields:
                first = fields[key.value].line
                raise key.fail(f"the key {quoted(key.value)} comes twice, first on line {first}; keep one")
            fields[key.value] = self.value(f"{name}.{key.value}".lstrip("."), key.line, depth)
        self.parser.get_event()
        return fields

    def refuse_references(self, event: Any) -> None:
        """Raise UserError if ``event`` is an alias or has an anchor or a tag."""
        if isinstance(event, yaml.AliasEvent):
            raise self.error(event, f"aliases ({quoted(f'*{event.anchor}')}) are not supported; write the value out")
        if event.anchor is not None:
            raise self.error(event, f"anchors ({quoted(f'&{event.anchor}')}) are not supported; write the value out")
        if event.tag is not None:
            raise self.error(event, f"tags ({quoted(event.tag)}) are not supported; remove the tag")

    def error(self, event: Any, message: str) -> UserError:
        """Make a UserError with ``message`` and the line where ``event`` begins."""
        return UserError(message, f"{self.file}:{event.start_mark.line + 1}")


def _column(event: Any, line: int) -> int:
    """The column, from 1, at which the text of the scalar ``event`` begins on ``line``. 0 if the text is not on this
    line alone, or if the text in the file differs from the value, as with escapes.
    """
    start, end, quotes = event.start_mark, event.end_mark, 2 if event.style else 0
    as_it_reads = end.column - start.column == len(event.value) + quotes
    return start.column + quotes // 2 + 1 if as_it_reads and start.line + 1 == line == end.line + 1 else 0
