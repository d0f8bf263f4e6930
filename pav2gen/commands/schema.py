"""Implements ``pav2gen schema``: prints the JSON Schema of a spec, or writes it to a file."""

from __future__ import annotations

import json
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.files import check_replaceable
from pav2gen.reading.json_schema import DIALECT, spec_schema


def schema_text() -> str:
    """Return the JSON Schema of a spec as indented JSON, with a newline at its end."""
    return json.dumps(spec_schema(), indent=2) + "\n"


def write_schema(path: Path) -> None:
    """Write the JSON Schema of a spec to ``path``.

    Raises UserError if ``path`` is a file with other content than a JSON Schema, or if ``path`` cannot be written.
    """
    check_replaceable(path, f'{{\n  "$schema": "{DIALECT}"'.encode(), "a JSON Schema of pav2gen")
    try:
        path.write_text(schema_text(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror})", str(path)) from error
