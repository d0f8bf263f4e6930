"""Parses YAML files into ``Node`` objects, each with its file and line.

The parser accepts only a strict subset of YAML, which all YAML parsers read in the same way. A file in this subset has
one document, and no anchors, aliases, tags, merge keys or tabs. The methods of ``Node`` also refuse values that
versions of YAML read as different types, such as ``yes``, ``010`` and ``1:30``.
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
    """Read the bytes of the regular file at ``path``.

    Raises UserError if the file cannot be read or is larger than ``max_bytes``.
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
    """Parse the YAML document in ``data``.

    file: the path of the YAML file, for error messages.

    Raises UserError, with ``file:line``, if ``data`` is not UTF-8, not YAML, or not in the accepted subset of YAML.
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
    """Decode ``data`` as UTF-8 text.

    file: the path of the file, for error messages.

    Raises UserError for invalid UTF-8, a byte-order mark, a tab or a control character.
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
    """Return the path ``name`` as messages show it: on one line, and with escapes for unprintable characters."""
    return name if name.isprintable() else ascii(name)


def _neighbour(name: str) -> str:
    """Return advice for an error message about the missing file ``name``: the most similar file name in the same
    folder.

    The result is empty if no file name is similar.
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
    """Return the error message for a YAML syntax error on ``line``, with advice on how to repair the error."""
    problem = (error.problem or "it does not parse").replace(" in this context", " here")[:80]
    start = error.context_mark.line + 1 if error.context_mark else line
    began = f", {error.context} from line {start}" if start != line else ""
    if "mapping values are not allowed" in problem:
        advice = "put a text with ': ' in quotes, and check the indentation"
    else:
        advice = "check the indentation, the brackets and the quotes"
    return f"not YAML: {problem}{began}; {advice}"


class _Composer:
    """Builds ``Node`` objects from the events of a YAML parser, and refuses every alias."""

    def __init__(self, parser: Any, file: str) -> None:
        self.parser = parser
        self.file = file

    def document(self) -> Node:
        """Read the only document of the YAML file, and return the document's root.

        Raises UserError if the file is empty or has a second document.
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
        """Read the value that begins with the parser's next event, and return the value's node.

        name: the dotted path of the value.
        key_line: the line of the value's key, or None for a value without a key. The node gets the line of the key.
        depth: the number of lists and mappings around the value.
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
        """Yield the items of a list, after the event that begins the list has been read.

        name: the dotted path of the list.
        depth: the number of lists and mappings around each item.
        """
        while not self.parser.check_event(yaml.SequenceEndEvent):
            yield self.value(name, None, depth)
        self.parser.get_event()

    def fields(self, name: str, depth: int) -> dict[str, Node]:
        """Return the fields of a mapping by key, after the event that begins the mapping has been read.

        name: the dotted path of the mapping.
        depth: the number of lists and mappings around each field.

        Raises UserError for a repeated key and for a merge key.
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
        """Return a UserError with ``message`` for the line where ``event`` begins."""
        return UserError(message, f"{self.file}:{event.start_mark.line + 1}")


def _column(event: Any, line: int) -> int:
    """Return the column, from 1, where the text of the scalar ``event`` begins.

    The result is 0 if the text is not on ``line`` alone, or if the file writes the text with escapes.
    """
    start, end, quotes = event.start_mark, event.end_mark, 2 if event.style else 0
    as_it_reads = end.column - start.column == len(event.value) + quotes
    return start.column + quotes // 2 + 1 if as_it_reads and start.line + 1 == line == end.line + 1 else 0
