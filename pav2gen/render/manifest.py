"""The content of a MANIFEST.json, which lists files of a generated package, and the sources of these files.

Each spec has a MANIFEST.json in its folder. The manifest lists the files in this folder, and has a row for each kernel
of the spec. The shared manifest, at the top of the generated package, lists the files that all specs share. A build
writes a manifest after the files that the manifest lists. If a manifest exists, all files that it lists were written.
docs/manifest.md documents the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pav2gen.errors import UserError
from pav2gen.files import sha256
from pav2gen.render.fileset import FileSet
from pav2gen.runtime.choice.dispatch_row import Modification, Row, Tuned
from pav2gen.runtime.choice.key import KEYS

SCHEMA = 1
NAME = "MANIFEST.json"

#: The owner of the files that all specs share. The owner of a spec's files is the name of the spec.
SHARED = ""

#: The row of a kernel in a manifest, as a mapping from the name of a column to its value. The columns are the fields of
#: ``runtime.choice.dispatch_row.Row``, then ``EXTRA_COLUMNS``.
ManifestRow = Mapping[str, Any]

#: The columns that a row has in a manifest, but not in the dispatch table: the results of tuning, the path of the
#: kernel's tests, and the figures of its plan.
EXTRA_COLUMNS = ("tuned", "test", "figures")


@dataclass(frozen=True)
class Manifest:
    """The content of one MANIFEST.json. docs/manifest.md explains the fields that are not explained here.

    owner: the name of the spec that the manifest belongs to, or ``SHARED``.
    spec: properties of the spec, such as its name and its sha256, or empty in the shared manifest.
    rows: a row for each kernel of the spec, or empty in the shared manifest.
    files: the sha256 of each file, by its path relative to the manifest's folder.
    digest: the sha256 of the MANIFEST.json, or empty if the manifest was not read from a file.
    unfit: the reason why the fields of a MANIFEST.json other than ``files`` could not be read, or empty if all could be
    read.

    Every version of pav2gen can read ``files`` of all other versions. If another version wrote the other fields in an
    unknown form, the other fields are empty here, and ``unfit`` gives the reason.
    """

    owner: str
    generator: str
    spec: Mapping[str, Any]
    filter: tuple[str, ...]
    templates: Mapping[str, str]
    rows: tuple[ManifestRow, ...]
    files: Mapping[str, str]
    digest: str = ""
    unfit: str = ""

    @property
    def path(self) -> str:
        """The path of this MANIFEST.json, relative to the generated package."""
        return path_of(self.owner)

    def owned(self) -> dict[str, str]:
        """Return the sha256 of each file that the manifest lists, by its path relative to the generated package."""
        return {below(self.owner, path): digest for path, digest in self.files.items()}

    def content(self) -> bytes:
        """Return the content of the MANIFEST.json in bytes."""
        entries = {
            "schema": _line(SCHEMA),
            "generator": _line(self.generator),
            "spec": _line(self.spec),
            "filter": _line(self.filter),
            "templates": _mapping(self.templates),
            "rows": _block("[]", map(_line, self.rows)),  # a line for each, so that a diff shows which kernels changed
            "files": _mapping(self.files),
        }
        body = "{\n" + "".join(f' "{key}": {text},\n' for key, text in entries.items())
        return (body + stamp_line(body)).encode()


def path_of(owner: str) -> str:
    """Return the path of the MANIFEST.json of ``owner``, relative to the generated package."""
    return below(owner, NAME)


def below(owner: str, path: str) -> str:
    """Convert ``path``, relative to the folder of ``owner``, to a path relative to the generated package."""
    return f"{owner}/{path}" if owner else path


def describe(owner: str, files: FileSet, **entries: Any) -> Manifest:
    """Make the manifest of ``owner`` that lists ``files``. All these files must be in the owner's folder.

    files: the files, by their paths relative to the generated package.
    entries: the values of the fields of ``Manifest`` other than ``owner`` and ``files``.
    """
    start = len(below(owner, ""))
    digests = {path[start:]: files.digest(path) for path in files}
    return Manifest(owner=owner, files=digests, **entries)


def manifest_row(row: Row, **extra: object) -> ManifestRow:
    """Make the row of a kernel in a manifest.

    row: the kernel's row in the dispatch table.
    extra: the values of the columns ``EXTRA_COLUMNS``, which only the manifest has.
    """
    modification = row.modification and row.modification._asdict()
    return {**row._asdict(), "key": row.key._asdict(), "modification": modification, **extra}


def table_row(entry: ManifestRow) -> Row:
    """Convert a kernel's row in a manifest to its row in the dispatch table.

    Raises KeyError or TypeError if columns are missing.
    """
    columns = {name: entry[name] for name in Row._fields if name not in ("key", "modification", "operator")}
    operator = entry.get("operator", "decode")  # manifests of 0.1 lack this column
    modification = _modification(entry.get("modification"))
    return Row(key=KEYS[operator](**entry["key"]), modification=modification, operator=operator, **columns)


def _modification(entry: Mapping[str, Any] | None) -> Modification | None:
    """Convert the column ``modification`` of a row in a manifest. Return None if the kernel has no modification."""
    if entry is None:
        return None
    return Modification(entry["score"], entry["mask"], tuple((name, axis) for name, axis in entry["tensors"]))


def tuned_rows(entry: ManifestRow) -> list[Tuned]:
    """Return the results of tuning in a kernel's row in a manifest. Raises KeyError or TypeError if columns are
    missing.
    """
    return [Tuned(symbol=entry["symbol"], **measured) for measured in entry["tuned"]]


def merge(manifests: Iterable[Manifest]) -> tuple[tuple[ManifestRow, ...], tuple[str, ...]]:
    """Make the rows of the dispatch table from the rows of ``manifests``. Also return messages to the user about kernel
    keys that several specs have.

    The manifests must be sorted by the names of the specs. The rows stay in the order of ``manifests``. If several
    specs have kernels with the same key, the dispatch table gets only the kernels of the first spec.

    Raises UserError for two specs with different modifications of the same name.
    """
    rows: list[ManifestRow] = []
    server: dict[tuple[object, ...], str] = {}
    clashes: dict[tuple[str, str], int] = {}
    definitions: dict[str, tuple[object, str]] = {}
    for manifest in manifests:
        for row in manifest.rows:
            _check_definition(row, manifest.owner, definitions)
            first = server.setdefault((row.get("operator", "decode"), *row["key"].values()), manifest.owner)
            if first == manifest.owner:
                rows.append(row)
            else:
                clashes[manifest.owner, first] = clashes.get((manifest.owner, first), 0) + 1
    notes = [
        f"{first} serves the keys of {n} kernels of {late}: if two specs have the same key, the first by name serves it"
        for (late, first), n in clashes.items()
    ]
    return tuple(rows), tuple(notes)


def _check_definition(row: ManifestRow, owner: str, definitions: dict[str, tuple[object, str]]) -> None:
    """Raise UserError if another spec defines the modification of ``row`` differently under the same name.

    owner: the spec of the row.
    definitions: maps the name of each modification in earlier rows to its definition and the first spec that defines
    it. This function adds the modification of ``row``.
    """
    if row.get("modification"):
        name = row["key"]["modification"]
        defined, first = definitions.setdefault(name, (row["modification"], owner))
        if defined != row["modification"]:  # an error, because a call states only the name of a modification
            raise UserError(f"{owner} and {first} define the modification {name} differently; rename one of the two")


def _line(value: object) -> str:
    return json.dumps(value)


def _mapping(values: Mapping[str, str]) -> str:
    return _block("{}", (f"{_line(key)}: {_line(values[key])}" for key in values))


def _block(brackets: str, lines: Iterable[str]) -> str:
    inside = ",\n".join(f"  {line}" for line in lines)
    return f"{brackets[0]}\n{inside}\n {brackets[1]}" if inside else brackets


def stamp_line(body: str) -> str:
    """Return the end of a MANIFEST.json: the last brace, and before it the field ``stamp``, the sha256 of ``body``.

    body: all lines of the MANIFEST.json before the stamp.
    """
    return f' "stamp": "{sha256(body.encode())}"\n}}\n'
