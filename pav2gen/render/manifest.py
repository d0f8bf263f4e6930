"""MANIFEST.json lists the files of a build and their sources. It is written last, so it marks a complete build.

The manifest of a spec lists the files in the spec's folder, and has the rows of its kernels. The manifest at the top
lists the files that all specs share. docs/manifest.md documents the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pav2gen.errors import UserError
from pav2gen.files import sha256
from pav2gen.render.fileset import FileSet
from pav2gen.runtime.select import KEYS, Modification, Row, Tuned

SCHEMA = 1
NAME = "MANIFEST.json"

#: The name of the owner of the files that all specs share. The other owners are the specs, by name.
SHARED = ""

#: A kernel's row: the columns of ``runtime.select.Row``, then ``EXTRA_COLUMNS``.
ManifestRow = Mapping[str, Any]

#: Columns of a manifest's row that the dispatch table does not have.
EXTRA_COLUMNS = ("tuned", "test", "figures")


@dataclass(frozen=True)
class Manifest:
    """One MANIFEST.json. ``files`` are relative to its folder. ``spec`` and ``rows`` are empty in the shared manifest.

    Every version of pav2gen can read ``files``, the files of the owner. The other fields are used for the files that
    all specs share. If another version of pav2gen wrote them in another format, they are empty and ``unfit`` says why.
    """

    owner: str
    generator: str
    spec: Mapping[str, Any]
    filter: tuple[str, ...]
    templates: Mapping[str, str]
    rows: tuple[ManifestRow, ...]
    files: Mapping[str, str]
    digest: str = ""  # the sha256 of the file it was read from
    unfit: str = ""

    @property
    def path(self) -> str:
        """The manifest's path, relative to the generated package."""
        return path_of(self.owner)

    def owned(self) -> dict[str, str]:
        """The files that it lists: path relative to the generated package -> sha256."""
        return {below(self.owner, path): digest for path, digest in self.files.items()}

    def content(self) -> bytes:
        """The file's bytes. Each entry and each row is one line, so that a diff names the kernels that changed."""
        entries = {
            "schema": _line(SCHEMA),
            "generator": _line(self.generator),
            "spec": _line(self.spec),
            "filter": _line(self.filter),
            "templates": _mapping(self.templates),
            "rows": _block("[]", map(_line, self.rows)),
            "files": _mapping(self.files),
        }
        body = "{\n" + "".join(f' "{key}": {text},\n' for key, text in entries.items())
        return (body + stamp_line(body)).encode()


def path_of(owner: str) -> str:
    """The path of an owner's manifest, relative to the generated package."""
    return below(owner, NAME)


def below(owner: str, path: str) -> str:
    """Convert ``path``, which is relative to an owner's folder, to a path relative to the generated package."""
    return f"{owner}/{path}" if owner else path


def describe(owner: str, files: FileSet, **entries: Any) -> Manifest:
    """Make the manifest of ``files``. Their paths are relative to the package, and all are in the owner's folder."""
    start = len(below(owner, ""))
    digests = {path[start:]: files.digest(path) for path in files}
    return Manifest(owner=owner, files=digests, **entries)


def manifest_row(row: Row, **extra: object) -> ManifestRow:
    """The manifest's entry for the kernel of ``row``. ``extra`` has a value for each of ``EXTRA_COLUMNS``."""
    modification = row.modification and row.modification._asdict()
    return {**row._asdict(), "key": row.key._asdict(), "modification": modification, **extra}


def table_row(entry: ManifestRow) -> Row:
    """Convert a manifest's entry to a row of the dispatch table. Raises KeyError or TypeError if it is incomplete."""
    columns = {name: entry[name] for name in Row._fields if name not in ("key", "modification", "operator")}
    operator = entry.get("operator", "decode")  # manifests of 0.1 lack this column
    modification = _modification(entry.get("modification"))
    return Row(key=KEYS[operator](**entry["key"]), modification=modification, operator=operator, **columns)


def _modification(entry: Mapping[str, Any] | None) -> Modification | None:
    """The definition of the modification in a manifest's entry, or None."""
    if entry is None:
        return None
    return Modification(entry["score"], entry["mask"], tuple((name, axis) for name, axis in entry["tensors"]))


def tuned_rows(entry: ManifestRow) -> list[Tuned]:
    """The results of tuning in a manifest's entry. Raises KeyError or TypeError as ``table_row`` does."""
    return [Tuned(symbol=entry["symbol"], **measured) for measured in entry["tuned"]]


def merge(manifests: Iterable[Manifest]) -> tuple[tuple[ManifestRow, ...], tuple[str, ...]]:
    """Merge the rows of all manifests into the dispatch table. Also returns notes on keys that several specs have.

    The order is that of ``manifests`` (sorted by name) and of their rows. If two specs have the same key, all rows with
    this key are those of the first spec.
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
        f"{first} serves {n} of the kernels of {late}: the first by name serves a key"
        for (late, first), n in clashes.items()
    ]
    return tuple(rows), tuple(notes)


def _check_definition(row: ManifestRow, owner: str, definitions: dict[str, tuple[object, str]]) -> None:
    """Raise UserError if two specs have different modifications of the same name: a call gives only the name."""
    if row.get("modification"):
        name = row["key"]["modification"]
        defined, first = definitions.setdefault(name, (row["modification"], owner))
        if defined != row["modification"]:
            raise UserError(f"the modification {name} of {owner} is not the one of {first}; give it another name")


def _line(value: object) -> str:
    return json.dumps(value)


def _mapping(values: Mapping[str, str]) -> str:
    return _block("{}", (f"{_line(key)}: {_line(values[key])}" for key in values))


def _block(brackets: str, lines: Iterable[str]) -> str:
    inside = ",\n".join(f"  {line}" for line in lines)
    return f"{brackets[0]}\n{inside}\n {brackets[1]}" if inside else brackets


def stamp_line(body: str) -> str:
    """The last line of a manifest: a sha256 of all lines above it."""
    return f' "stamp": "{sha256(body.encode())}"\n}}\n'
