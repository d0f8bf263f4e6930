"""Reads and makes the content of INSTALLED.json, the record of an install in the folder ``pav2/`` of a vLLM tree.

The record says what the install changed, from which package, and how to undo the changes.

An install writes the record twice. Before its first change, it writes a record that also contains the record of the
earlier install that it replaces. After its last change, it writes its own record alone. So if the install is
killed, the next command recognizes the files of both installs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pav2gen import json_data
from pav2gen.errors import UserError
from pav2gen.install.editing.hunks import Hunk, is_ours

NAME = "INSTALLED.json"
SCHEMA = 1


@dataclass(frozen=True)
class RecordedEdit:
    """What an install changed in one source file of vLLM.

    before, after: the SHA-256 of the file before and after the install.
    hunks: the changed blocks of lines. A byte order mark is not part of them.
    """

    before: str
    after: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Record:
    """What one install wrote into a vLLM tree, and with which options.

    generator: the version of pav2gen that made the install, such as ``pav2gen 0.1``.
    specs: maps the name of each installed spec to a dict: the SHA-256 of the spec, and the number of its kernels.
    all_specs: whether the install took all specs of the package, and not only those that the user named.
    min_seq_len: the value of the option ``--min-seq-len``, or None if it was not given.
    tests: whether the kernels' tests were installed.
    prebuilt: the file name of the library that ``--prebuilt`` added, or empty if there is none.
    digest: the SHA-256 over all installed files, as in ``PackageContents.digest``.
    files: maps the path of each installed file, below ``pav2/``, to its SHA-256.
    edits: maps the path of each edited source file, below vLLM's folder, to what was changed in it.
    writer: which caches the generated cache writers fill, as in ``apply.InstallOptions``.
    operators: maps the name of each operator, such as ``decode``, to the number of its kernels.
    complete: whether the install has made all its changes.
    replaces: the record of the earlier install, if there was one and ``complete`` is false; else None.
    """

    generator: str
    specs: Mapping[str, Mapping[str, Any]]
    all_specs: bool
    min_seq_len: int | None
    tests: bool
    prebuilt: str
    digest: str
    files: Mapping[str, str]
    edits: Mapping[str, RecordedEdit]
    writer: str = "auto"
    operators: Mapping[str, int] = field(default_factory=dict)
    complete: bool = True
    replaces: Record | None = None

    def content(self) -> bytes:
        """Return the bytes of an INSTALLED.json with this record."""
        return (json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()

    def under_way(self, earlier: Record | None) -> Record:
        """Return a copy of this record, marked as not complete. An install writes it before its first change.

        earlier: the record of the install that is replaced, or None. The copy contains it.
        """
        return replace(self, complete=False, replaces=earlier and replace(earlier, replaces=None))

    def states(self) -> list[Record]:
        """Return the records of all installs whose files may be in the tree: this one, and the one that it replaces."""
        return [self, *([self.replaces] if self.replaces else [])]

    def known(self, path: str) -> set[str]:
        """Return the SHA-256 digests that the file ``path`` below ``pav2/`` can have if nobody edited it."""
        return {state.files[path] for state in self.states() if path in state.files}


def parse_record(content: bytes, where: str) -> Record:
    """Parse ``content``, the bytes of an INSTALLED.json. Raises UserError if no install can have written them.

    where: the name that messages give to the file.
    """
    try:
        return _record(_RECORD(json_data.parse_json(content)))
    except ValueError as error:
        raise UserError(
            f"is not as pav2gen install wrote it ({error}); restore the tree from version control", where
        ) from error


def _with_defaults(read: json_data.Reader) -> json_data.Reader:
    """Return a function that reads the JSON data of a record with ``read``, also if pav2gen 0.1 wrote the record.

    The function adds the fields that such a record lacks, and then calls ``read``.
    """
    return lambda value: read({"writer": "auto", "operators": {}, **value} if isinstance(value, dict) else value)


def _record(data: dict[str, Any]) -> Record:
    replaces = data["replaces"] and _record(data["replaces"])
    return Record(**{**{name: value for name, value in data.items() if name != "schema"}, "replaces": replaces})


def _hunk(value: Any) -> Hunk:
    """Read a hunk from JSON data: a list of two strings, the lines that an edit removed and those that replace them.

    Raises ValueError if no install can have made this edit.
    """
    lines = json_data.items(_lines)(value)
    if len(lines) != len(Hunk._fields):
        raise ValueError(f"{json_data.seen(value)} is not a pair of texts")
    hunk = Hunk(*lines)
    if not is_ours(hunk):
        raise ValueError("it would remove lines that no install inserts")
    return hunk


def _lines(value: Any) -> str:
    """Return ``value``, the text of source lines. Raises ValueError if it is not a string."""
    if not isinstance(value, str):
        raise ValueError(f"{json_data.seen(value)} is not a text")
    return value


_EDIT = json_data.fields({"before": json_data.digest, "after": json_data.digest, "hunks": json_data.items(_hunk)})

#: Maps each field of a record in JSON, except ``schema`` and ``replaces``, to the function that checks and reads it.
_FIELDS: Mapping[str, json_data.Reader] = {
    "generator": json_data.text,
    "specs": json_data.mapping(
        json_data.word, json_data.fields({"sha256": json_data.digest, "kernels": json_data.whole})
    ),
    "all_specs": json_data.boolean,
    "min_seq_len": json_data.optional(json_data.whole),
    "tests": json_data.boolean,
    "prebuilt": json_data.text,
    "digest": json_data.digest,
    "files": json_data.mapping(json_data.path, json_data.digest),
    "edits": json_data.mapping(json_data.path, lambda value: RecordedEdit(**_EDIT(value))),
    "writer": json_data.word,
    "operators": json_data.mapping(json_data.word, json_data.whole),
    "complete": json_data.boolean,
}
_REPLACED = _with_defaults(json_data.fields({**_FIELDS, "replaces": json_data.constant(None)}))
_RECORD = _with_defaults(
    json_data.fields({"schema": json_data.constant(SCHEMA), **_FIELDS, "replaces": json_data.optional(_REPLACED)})
)
