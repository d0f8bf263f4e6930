"""Implements ``pav2gen init``: writes a first spec for a model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.files import check_output
from pav2gen.reading.model_config import read_attention
from pav2gen.reading.spec_file import parse
from pav2gen.render.spec_draft import draft_spec, family_name

#: The folder in which a spec is written if the user names no path.
SPECS = Path("specs")


@dataclass(frozen=True)
class Draft:
    """The path of the new spec, remarks on it, and features of the model's attention that no kernel covers."""

    path: Path
    notes: tuple[str, ...]
    uncovered: tuple[str, ...]


def init(config: Path, out: Path | None = None, force: bool = False, schema: str | None = None) -> Draft:
    """Write a spec for a model. ``config`` is the path of the model's config.json, as on the Hugging Face Hub.

    out: the path of the spec, by default ``specs/NAME.yaml``. The spec is named after ``out``, or else after the model.
    schema: the path of a JSON Schema. The first line of the spec then names the schema for editors.

    Raises UserError if no kernel can serve the model, or if the spec cannot be written. Without ``force``, also raises
    UserError if the spec exists.
    """
    draft = draft_spec(config, family_name(out.stem) if out else "")
    path = out or SPECS / f"{parse(draft.encode(), os.fspath(config)).name}.yaml"
    text = (_schema_line(schema, path.parent) + draft).encode()
    check_output(path, config)
    if path.exists() and not force:
        raise UserError("exists already; name another file with --out, or add --force to replace it", str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror})", str(path)) from error
    attention = read_attention(config)
    return Draft(path, attention.notes, attention.uncovered)


def _schema_line(schema: str | None, folder: Path) -> str:
    """Return the comment by which editors find the JSON Schema of a spec, or an empty text if ``schema`` is None.

    The comment gives the schema's path relative to ``folder``, the folder of the spec. Raises UserError for a path
    that a comment cannot contain.
    """
    if schema is None:
        return ""
    if not schema.strip() or not schema.isprintable():
        raise UserError("--schema must be a printable path, because a comment contains it")
    relative = Path(os.path.relpath(schema, folder)).as_posix()
    return f"# yaml-language-server: $schema={relative}\n"
