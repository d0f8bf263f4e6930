"""Writes and reads the JSON document of a measurement. docs/bench.md describes its fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pav2gen.errors import UserError
from pav2gen.family.axes import AXES, TYPE_NAMES, Axis
from pav2gen.files import check_replaceable
from pav2gen.json_data import (
    Reader,
    anything,
    fields,
    items,
    mapping,
    not_negative,
    optional,
    parse_json,
    positive,
    positive_whole,
    prose,
    scalar,
    seen,
    text,
    whole,
    word,
)
from pav2gen.runtime.choice.key import Key

KIND, SCHEMA = "pav2gen bench", 1


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write ``document`` to ``path`` as JSON, atomically. The folder must exist. Raises OSError if writing fails."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(rendered(document), encoding="utf-8")
    beside.replace(path)


def check_writable(path: Path, kind: str = KIND) -> None:
    """Check that ``path`` can be written, so that the results of a long measurement are not lost at its end.

    Missing folders are created. Raises OSError if the file cannot be written. Raises UserError if ``path`` is a file,
    but not a JSON document whose field ``kind`` has the value ``kind``.
    """
    check_replaceable(path, f'{{\n "kind": "{kind}"'.encode(), "a document of pav2gen bench")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab"):
        pass


def rendered(document: Mapping[str, Any]) -> str:
    """Return ``document`` as JSON text. Each top-level field and each entry of ``points`` is on a line of its own."""
    lines = []
    for name, value in document.items():
        if name == "points":
            points = ",\n".join(f"  {json.dumps(point)}" for point in value)
            lines.append(f' "points": [\n{points}\n ]')
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(path: Path) -> dict[str, Any]:
    """Read the JSON document of a decode measurement from ``path``, and check it.

    Raises UserError if the file is missing or damaged, is of another kind, or has another version of the schema.
    """
    try:
        document = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError("there is no such file; write one with: pav2gen bench SPEC --json FILE", str(path)) from None
    except (OSError, ValueError) as error:
        raise UserError(f"is not readable JSON ({error})", str(path)) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UserError("is not a document of pav2gen bench; write one with: pav2gen bench SPEC --json FILE", str(path))
    if document.get("schema") != SCHEMA:
        found = seen(document.get("schema"))
        raise UserError(f"has schema {found}, but this pav2gen reads schema {SCHEMA}; measure again", str(path))
    try:
        _DOCUMENT(document)
    except ValueError as error:
        raise UserError(f"is damaged: {error}; measure again", str(path)) from None
    return document


def _axis(axis: Axis) -> Reader:
    """Return a function that checks the type of a value of ``axis`` in a document, and returns the value.

    The function raises ValueError for a value of another type.
    """

    def read(value: Any) -> object:
        if not axis.has_type(value):
            raise ValueError(f"{seen(value)} is not {TYPE_NAMES[axis.kind]}")
        return word(value) if isinstance(value, str) else scalar(value)

    return read


def _contestant(value: Any) -> dict[str, Any]:
    """Check the entry of a kernel or baseline in a document, and return it.

    An entry must have either the reason why nothing was timed, in ``because``, or the times and the other figures.
    """
    entry = _UNTIMED(value)
    entry = entry if entry["because"] else _TIMED(value)
    if "symbol" in entry or "backend" in entry:
        fields({"symbol": word, "backend": word}, anything)(entry)
    return dict(entry)


_UNTIMED = fields({"name": text, "because": prose}, anything)
_TIMED = fields(
    {
        "name": text,
        "because": prose,
        "median_ms": positive,
        "spread": not_negative,
        "gbps": not_negative,
        "share_of_copy": not_negative,
        "launches": optional(whole),
        "workspace_bytes": whole,
    },
    anything,
)
_POINT = fields(
    {
        "key": fields({name: _axis(AXES[name]) for name in Key._fields}),
        **dict.fromkeys(("num_heads", "kv_heads", "num_seqs", "seq_len", "kv_bytes", "io_bytes"), positive_whole),
        "copy_gbps": positive,
        "chosen": mapping(word, word),
        "contestants": items(_contestant),
    },
    anything,
)

#: A function that checks the fields of a document that ``pav2gen report`` uses. It raises ValueError for a field
#: that is missing or wrong.
_DOCUMENT = fields(
    {
        "date": text,
        "command": prose,
        "device": fields({"name": text, "kind": text, "about": prose}, anything),
        "versions": mapping(text, prose),
        "spec": fields({"name": text, "file": text, "sha256": text}, anything),
        "settings": fields({"rounds": whole}, anything),
        "notes": items(prose),
        "points": items(_POINT),
    },
    anything,
)
