"""Reads and makes the content of INSTALLED.json, the file in which an install records its changes of a vLLM tree.

While an install replaces an earlier one, the file contains the records of both installs. If the new install is killed,
the next command still recognizes the files of both installs.
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
    """The changes of an install in one source file of vLLM.

    before, after: the SHA-256 of the file before and after the install.
    hunks: the changed blocks of lines, without a byte order mark.
    """

    before: str
    after: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Record:
    """The files that one install wrote into a vLLM tree, and the options of the install.

    generator: the version of pav2gen that made the install, such as ``pav2gen 0.1``.
    specs: maps the name of each installed spec to a dict with the SHA-256 of the spec file and the number of the spec's
    kernels.
    all_specs: whether the install took all specs of the package, and not only those that the user named.
    min_seq_len: the value of the option ``--min-seq-len``, or None if the option was not given.
    tests: whether the kernels' tests were installed.
    prebuilt: the file name of the library that ``--prebuilt`` added, or empty if there is none.
    digest: the SHA-256 over all installed files, as in ``PackageContents.digest``.
    files: maps the path of each installed file, relative to the package's folder, to its SHA-256.
    edits: maps the path of each edited source file, relative to vLLM's folder, to the changes in this file.
    writer: which caches the generated cache writers fill, as in ``apply.InstallOptions``.
    operators: maps the name of each operator, such as ``decode``, to the number of its installed kernels.
    complete: whether the install has made all its changes.
    replaces: the record of the earlier install that an incomplete install replaces. None if there was no earlier
    install, or if ``complete`` is true.
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
        """Return this record as the bytes of an INSTALLED.json file."""
        return (json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()

    def under_way(self, earlier: Record | None) -> Record:
        """Return a copy of this record, marked as not complete, that contains the record ``earlier``.

        earlier: the record of the earlier install that is replaced, or None if there is none.
        """
        return replace(self, complete=False, replaces=earlier and replace(earlier, replaces=None))

    def states(self) -> list[Record]:
        """Return this record and, if there is one, the record ``replaces``."""
        return [self, *([self.replaces] if self.replaces else [])]

    def known(self, path: str) -> set[str]:
        """Return the SHA-256 digests that an installed file can have if nobody edited it.

        path: the path of the file, relative to the package's folder.
        """
        return {state.files[path] for state in self.states() if path in state.files}


def parse_record(content: bytes, where: str) -> Record:
    """Parse ``content``, the bytes of an INSTALLED.json file. Raises UserError if no install can have written these
    bytes.

    where: the name that messages give to the file.
    """
    try:
        return _record(_RECORD(json_data.parse_json(content)))
    except ValueError as error:
        raise UserError(
            f"is not as pav2gen install wrote it ({error}); restore the tree from version control", where
        ) from error


def _with_defaults(read: json_data.Reader) -> json_data.Reader:
    """Return a function that adds the fields that a record of pav2gen 0.1 lacks, and then calls ``read``."""
    return lambda value: read({"writer": "auto", "operators": {}, **value} if isinstance(value, dict) else value)


def _record(data: dict[str, Any]) -> Record:
    replaces = data["replaces"] and _record(data["replaces"])
    return Record(**{**{name: value for name, value in data.items() if name != "schema"}, "replaces": replaces})


def _hunk(value: Any) -> Hunk:
    """Read one hunk from JSON data: a list of two strings, the removed lines and the new lines.

    Raises ValueError if no install can have made this change.
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

#: Maps each field of a record, except ``schema`` and ``replaces``, to the function that checks and reads its JSON
#: value.
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
