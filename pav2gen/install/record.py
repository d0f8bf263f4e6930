"""INSTALLED.json, the record of an install in ``pav2/``: what changed, from which package, and how to undo the changes.

An install writes the record twice. Before its first change, it writes a record that also contains the record of the
earlier install that it replaces. After its last change, it writes its own record alone. So after a crash, the next
install or uninstall recognizes the files of both installs.
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
    """The edit of one source file of vLLM.

    before, after: the SHA-256 of the file before and after the edit.
    hunks: the lines that changed, without a BOM.
    """

    before: str
    after: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Record:
    """The record of one install.

    specs: maps the name of each spec to its SHA-256 and its number of kernels.
    all_specs: whether every spec of the package was installed.
    writer: as in ``apply.InstallOptions``.
    operators: the number of kernels of each operator.
    files: maps each path below ``pav2/`` to the file's SHA-256.
    edits: maps each path below vLLM's folder to its edit.
    complete: whether the install ended.
    replaces: while the install runs, the record of the earlier install, if there was one; else None.
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
        """Return the bytes of INSTALLED.json."""
        return (json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()

    def under_way(self, earlier: Record | None) -> Record:
        """Return the record to write before the first change.

        This record also contains ``earlier``, the record of the earlier install.
        """
        return replace(self, complete=False, replaces=earlier and replace(earlier, replaces=None))

    def states(self) -> list[Record]:
        """Return the records of the installs that may have written files: this record, and the one that it replaces."""
        return [self, *([self.replaces] if self.replaces else [])]

    def known(self, path: str) -> set[str]:
        """Return the SHA-256 digests that an unedited file below ``pav2/`` can have."""
        return {state.files[path] for state in self.states() if path in state.files}


def parse_record(content: bytes, where: str) -> Record:
    """Parse the record in a file. Raises UserError for a file that no install can have written."""
    try:
        return _record(_RECORD(json_data.parse_json(content)))
    except ValueError as error:
        raise UserError(
            f"is not as pav2gen install wrote it ({error}); restore the tree from version control", where
        ) from error


def _with_defaults(read: json_data.Reader) -> json_data.Reader:
    """Make a reader that adds the fields that records of version 0.1 lack, and then calls ``read``."""
    return lambda value: read({"writer": "auto", "operators": {}, **value} if isinstance(value, dict) else value)


def _record(data: dict[str, Any]) -> Record:
    replaces = data["replaces"] and _record(data["replaces"])
    return Record(**{**{name: value for name, value in data.items() if name != "schema"}, "replaces": replaces})


def _hunk(value: Any) -> Hunk:
    """Read the lines that an edit removed, and the lines that it added.

    Raises ValueError for lines that no install adds.
    """
    lines = json_data.items(_lines)(value)
    if len(lines) != len(Hunk._fields):
        raise ValueError(f"{json_data.seen(value)} is not a pair of texts")
    hunk = Hunk(*lines)
    if not is_ours(hunk):
        raise ValueError("it would remove lines that no install inserts")
    return hunk


def _lines(value: Any) -> str:
    """Read a text of source lines. Any characters are allowed."""
    if not isinstance(value, str):
        raise ValueError(f"{json_data.seen(value)} is not a text")
    return value


_EDIT = json_data.fields({"before": json_data.digest, "after": json_data.digest, "hunks": json_data.items(_hunk)})

#: The checks of a record's fields, except for ``schema`` and ``replaces``.
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
