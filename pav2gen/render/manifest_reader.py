"""Reads a MANIFEST.json, and checks every field strictly.

The checks are needed because someone may have edited the file, and text from the file goes into generated code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pav2gen.files import sha256
from pav2gen.json_data import (
    Reader,
    boolean,
    constant,
    digest,
    fields,
    items,
    mapping,
    number,
    optional,
    pair,
    parse_json,
    path,
    scalar,
    seen,
    text,
    whole,
    word,
)
from pav2gen.render.manifest import SCHEMA, Manifest, stamp_line
from pav2gen.runtime.choice.dispatch_row import Modification, Row, Tuned
from pav2gen.runtime.choice.key import KEYS


class NotAManifest(Exception):
    """Raised if a MANIFEST.json cannot be used. The message is the rest of a sentence that begins with the file's name,
    such as ``is not JSON``.
    """


def parse(owner: str, content: bytes) -> Manifest:
    """Parse a MANIFEST.json. Raises NotAManifest if ``content`` is not byte for byte what a build wrote.

    owner: the name of the spec that the manifest belongs to, or ``manifest.SHARED``.
    content: the bytes of the file.
    """
    try:
        data = parse_json(content)
    except ValueError as error:
        raise NotAManifest(f"is not JSON ({error})") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise NotAManifest("is not a manifest of pav2gen")
    if data["schema"] != SCHEMA:
        raise NotAManifest(f"has schema {seen(data['schema'])}, but this pav2gen reads schema {SCHEMA}")
    whole_text = content.decode()
    body, found, _ = whole_text.rpartition(' "stamp"')
    if not found or body + stamp_line(body) != whole_text:
        raise NotAManifest("was edited by hand (its stamp does not fit)")
    try:
        files = fields({"files": mapping(path, digest)}, extra=lambda value: value)(data)["files"]
    except ValueError as error:
        raise NotAManifest(f"is not a manifest of pav2gen ({error})") from None
    return _from_data(owner, data, files, sha256(content))


def _from_data(owner: str, data: Mapping[str, Any], files: Mapping[str, str], content_digest: str) -> Manifest:
    """Make a ``Manifest`` from a parsed MANIFEST.json.

    If a field does not have the form that this version of pav2gen writes, the result has only ``files``, and ``unfit``
    gives the reason.

    data: all fields of the JSON object.
    files: the field ``files``, checked already.
    content_digest: the sha256 of the file.
    """
    nothing: dict[str, Any] = {"generator": "", "spec": {}, "filter": (), "templates": {}, "rows": ()}
    try:
        read = fields({**_FIELDS, "spec": _spec_reader(owner), "rows": items(_row_reader(owner))})(data)
    except ValueError as error:
        unfit = f"is not as this version of pav2gen writes it ({error})"
        return Manifest(owner, files=files, digest=content_digest, unfit=unfit, **nothing)
    return Manifest(owner, files=files, digest=content_digest, **{name: read[name] for name in nothing})


def _file_name(value: Any) -> str:
    """Return ``value`` if it is the name of a file without a folder. Raises ValueError for any other value."""
    if "/" in path(value):
        raise ValueError(f"{seen(value)} is not the name of a file")
    return str(value)


def _spec_reader(owner: str) -> Reader:
    """Make a function that checks the field ``spec`` of the manifest of ``owner``, and returns its value."""
    spec = fields(
        {
            "name": constant(owner),
            "about": text,
            "file": _file_name,
            "sha256": digest,
            "tuning": mapping(path, digest),
        }
    )
    return lambda value: {} if value == {} else spec(value)


def _row_reader(owner: str) -> Reader:
    """Make a function that checks the row of a kernel in the manifest of ``owner``, and returns the row."""
    measured = _columns(Tuned, text)
    del measured["symbol"]
    columns = {
        **_columns(Row, word, leave_out=("key",)),
        "spec": constant(owner),
        "tuned": items(fields(measured)),
        "test": path,
        "figures": mapping(word, scalar),
    }
    readers = {
        operator: fields({**columns, "operator": constant(operator), "key": fields(_columns(key, word))})
        for operator, key in KEYS.items()
    }

    def read(value: Any) -> Any:
        operator = value.get("operator") if isinstance(value, dict) else None
        return readers[str(operator) if operator in KEYS else "decode"](value)

    return read


_hints = cache(get_type_hints)


def _columns(row: Any, read_text: Reader, leave_out: Collection[str] = ()) -> dict[str, Reader]:
    """Return a dict from the name of each field of a NamedTuple class to a function that checks and returns the field's
    JSON value.

    row: the NamedTuple class.
    read_text: the function for fields that are strings.
    leave_out: the names of fields for which no function is made.
    """
    hints = _hints(row)
    return {name: _reader(kind, read_text) for name, kind in hints.items() if name not in leave_out}


def _reader(kind: Any, read_text: Reader) -> Reader:
    """Make a function that checks a JSON value, and returns it as the Python type ``kind``.

    read_text: the function to use for strings.
    """
    if get_origin(kind) in (Union, UnionType):
        (some,) = (each for each in get_args(kind) if each is not NoneType)
        return optional(_reader(some, read_text))
    if get_origin(kind) is tuple:
        first, second = get_args(kind)
        read = _reader(first, read_text)
        return items(read) if second is ... else pair(read, _reader(second, read_text))
    if kind is Modification:
        return fields(_columns(kind, text))
    if hasattr(kind, "_fields"):
        return fields(_columns(kind, read_text))
    return {int: whole, bool: boolean, float: number, str: read_text}[kind]


#: The functions that check the fields of a manifest, by the name of the field. The fields ``spec`` and ``rows`` are not
#: here, because their functions depend on the owner.
_FIELDS: Mapping[str, Reader] = {
    "schema": constant(SCHEMA),
    "generator": text,
    "filter": items(text),
    "templates": mapping(path, digest),
    "files": mapping(path, digest),
    "stamp": digest,
}
