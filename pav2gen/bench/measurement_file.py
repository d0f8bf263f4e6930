"""The JSON document of a bench: how it is written, and how it is read back. docs/bench.md describes its fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pav2gen.errors import UserError
from pav2gen.family.axes import AXES
from pav2gen.files import check_replaceable
from pav2gen.runtime.select import Key

KIND, SCHEMA = "pav2gen bench", 1

#: No figure of a bench comes near it.
LARGEST = 1e18

#: What a document must hold for the report to be made of it: field -> type.
FIELDS: Mapping[str, type] = {
    "date": str, "command": str, "device": dict, "versions": dict, "spec": dict, "settings": dict, "notes": list,
    "points": list,
}  # fmt: skip
POINT_FIELDS: Mapping[str, type] = {
    "key": dict, "num_heads": int, "kv_heads": int, "num_seqs": int, "seq_len": int, "kv_bytes": int, "io_bytes": int,
    "copy_gbps": float, "chosen": dict, "contestants": list,
}  # fmt: skip


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write ``document`` to ``path``, in a folder that is there. Raises OSError."""
    path.write_text(text(document), encoding="utf-8")


def check_writable(path: Path) -> None:
    """Raise where ``path`` cannot be written: better before a long measurement than after it.

    OSError, or UserError where something else stands there.
    """
    check_replaceable(path, f'{{\n "kind": "{KIND}"'.encode(), "a document of pav2gen bench")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a"):
        pass


def text(document: Mapping[str, Any]) -> str:
    """The JSON of ``document``: a field on each line, and a point on each line."""
    lines = []
    for name, value in document.items():
        if name == "points":
            points = ",\n".join(f"  {json.dumps(point)}" for point in value)
            lines.append(f' "points": [\n{points}\n ]')
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(path: Path) -> dict[str, Any]:
    """The document at ``path``. Raises UserError for a file that is none, or of another schema."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("there is no such file; write one with: pav2gen bench SPEC --json FILE", str(path)) from None
    except (OSError, ValueError) as error:
        raise UserError(f"is no JSON that can be read ({error})", str(path)) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UserError("is no document of pav2gen bench; write one with: pav2gen bench SPEC --json FILE", str(path))
    if document.get("schema") != SCHEMA:
        found = document.get("schema")
        raise UserError(f"has schema {found!r}, and this pav2gen reads {SCHEMA}; measure again", str(path))
    for problem in _problems(document):
        raise UserError(f"is damaged: {problem}; measure again", str(path))
    return document


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    """What is missing or of a wrong type."""
    yield from _missing("the document", document, FIELDS)
    yield from _missing("the device", document["device"], {"name": str, "kind": str, "about": str})
    for number, point in enumerate(document.get("points") or ()):
        what = f"points[{number}]"
        yield from _missing(what, point, POINT_FIELDS)
        yield from _wrong_key(f"the key of {what}", point["key"])
        positive = [name for name, kind in POINT_FIELDS.items() if kind in (int, float)]
        yield from _not_positive(what, point, positive)
        for entry in point["contestants"]:
            yield from _missing(f"a contestant of {what}", entry, {"name": str, "because": str})
            if not entry["because"]:
                yield from _not_positive(f"{entry['name']} of {what}", entry, ("median_ms",))
            known = [name for name in ("spread", "workspace_bytes", "launches") if entry.get(name) is not None]
            yield from _not_positive(f"{entry['name']} of {what}", entry, known, or_zero=True)


def _wrong_key(what: str, key: Mapping[str, Any]) -> Iterator[str]:
    """Where ``key`` has other axes than a key, or values of other types."""
    if key.keys() != set(Key._fields):
        yield f"{what} has other axes than {', '.join(Key._fields)}"
        return
    for axis, value in key.items():
        if not AXES[axis].has_type(value):
            yield f"{what} has {axis}: {value!r}"


def _not_positive(what: str, values: Mapping[str, Any], names: Iterable[str], or_zero: bool = False) -> Iterator[str]:
    """Which of ``names`` are no numbers that a measurement can have."""
    for name in names:
        value = values.get(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (0 < value < LARGEST or (or_zero and value == 0)):  # type: ignore[operator]
            yield f"{what} has {name}: {str(value)[:40]}"


def _missing(what: str, value: Any, fields: Mapping[str, type]) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{what} is no object"
        return
    for name, kind in fields.items():
        kinds = (int, float) if kind is float else kind
        if not isinstance(value.get(name), kinds):
            yield f"{what} lacks {name}"
