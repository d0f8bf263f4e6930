"""The content of a MANIFEST.json, which lists the files of a build and the sources that they were made from.

Each spec has a manifest in its folder, which lists the files in this folder and has a row for each kernel. The shared
manifest, at the top of the package, lists the files that all specs share. Manifests are written last, so that a
manifest marks a complete build. docs/manifest.md documents the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pav2gen.errors import UserError
from pav2gen.files import sha256
from pav2gen.render.fileset import FileSet
from pav2gen.runtime.dispatch_row import Modification, Row, Tuned
from pav2gen.runtime.key import KEYS

SCHEMA = 1
NAME = "MANIFEST.json"

#: The owner of the files that all specs share. All other owners are names of specs.
SHARED = ""

#: A kernel's row: the columns of ``runtime.dispatch_row.Row``, then ``EXTRA_COLUMNS``.
ManifestRow = Mapping[str, Any]

#: Columns of a manifest's row that the dispatch table does not have.
EXTRA_COLUMNS = ("tuned", "test", "figures")


@dataclass(frozen=True)
class Manifest:
    """The content of one MANIFEST.json.

    ``owner`` is the name of the spec, or ``SHARED``. ``files`` maps paths, relative to the manifest's folder, to sha256
    digests. ``spec`` and ``rows`` are empty in the shared manifest.

    Every version of pav2gen can read ``files`` of every other version. If another version wrote the other fields in an
    unknown format, these fields are empty, and ``unfit`` says why.
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
        """The path of the manifest, relative to the generated package."""
        return path_of(self.owner)

    def owned(self) -> dict[str, str]:
        """The files that the manifest lists: path relative to the generated package -> sha256."""
        return {below(self.owner, path): digest for path, digest in self.files.items()}

    def content(self) -> bytes:
        """The bytes of the manifest file. Each row is on its own line, so that a diff names the kernels that
        changed.
        """
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
    """The path of the manifest of ``owner``, relative to the generated package."""
    return below(owner, NAME)


def below(owner: str, path: str) -> str:
    """Convert ``path``, which is relative to the folder of ``owner``, to a path relative to the generated package."""
    return f"{owner}/{path}" if owner else path


def describe(owner: str, files: FileSet, **entries: Any) -> Manifest:
    """Make the manifest of ``owner`` for ``files``. All files must be in the owner's folder.

    The paths in ``files`` are relative to the generated package. ``entries`` are the further fields of ``Manifest``.
    """
    start = len(below(owner, ""))
    digests = {path[start:]: files.digest(path) for path in files}
    return Manifest(owner=owner, files=digests, **entries)


def manifest_row(row: Row, **extra: object) -> ManifestRow:
    """The row of a kernel in a manifest. ``row`` is the kernel's row in the dispatch table; ``extra`` has
    ``EXTRA_COLUMNS``.
    """
    modification = row.modification and row.modification._asdict()
    return {**row._asdict(), "key": row.key._asdict(), "modification": modification, **extra}


def table_row(entry: ManifestRow) -> Row:
    """Convert a kernel's row in a manifest to a row of the dispatch table. Raises KeyError or TypeError for an
    incomplete row.
    """
    columns = {name: entry[name] for name in Row._fields if name not in ("key", "modification", "operator")}
    operator = entry.get("operator", "decode")  # manifests of 0.1 lack this column
    modification = _modification(entry.get("modification"))
    return Row(key=KEYS[operator](**entry["key"]), modification=modification, operator=operator, **columns)


def _modification(entry: Mapping[str, Any] | None) -> Modification | None:
    """Convert the column ``modification`` of a manifest's row. None if the kernel has no modification."""
    if entry is None:
        return None
    return Modification(entry["score"], entry["mask"], tuple((name, axis) for name, axis in entry["tensors"]))


def tuned_rows(entry: ManifestRow) -> list[Tuned]:
    """The results of tuning in a kernel's row of a manifest. Raises KeyError or TypeError if the row is incomplete."""
    return [Tuned(symbol=entry["symbol"], **measured) for measured in entry["tuned"]]


def merge(manifests: Iterable[Manifest]) -> tuple[tuple[ManifestRow, ...], tuple[str, ...]]:
    """Merge the rows of all manifests into the rows of the dispatch table. Also returns messages about keys of several
    specs.

    The rows keep the order of ``manifests`` (sorted by name). If several specs have the same key, only the rows of the
    first of these specs are used for this key.
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
    """Raise UserError if two specs define different modifications with the same name. A call of an operator states only
    the name of a modification, not its definition.
    """
    if row.get("modification"):
        name = row["key"]["modification"]
        defined, first = definitions.setdefault(name, (row["modification"], owner))
        if defined != row["modification"]:
            raise UserError(f"{owner} and {first} define the modification {name} differently; rename one of the two")


def _line(value: object) -> str:
    return json.dumps(value)


def _mapping(values: Mapping[str, str]) -> str:
    return _block("{}", (f"{_line(key)}: {_line(values[key])}" for key in values))


def _block(brackets: str, lines: Iterable[str]) -> str:
    inside = ",\n".join(f"  {line}" for line in lines)
    return f"{brackets[0]}\n{inside}\n {brackets[1]}" if inside else brackets


def stamp_line(body: str) -> str:
    """The last line of a manifest, which has the sha256 of all lines before it. ``body`` is these lines."""
    return f' "stamp": "{sha256(body.encode())}"\n}}\n'
