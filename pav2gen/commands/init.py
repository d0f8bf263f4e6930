"""``pav2gen init``: write a first spec for a model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.files import check_output
from pav2gen.reading.model_config import read_attention
from pav2gen.reading.spec_file import parse
from pav2gen.render.spec_draft import draft_spec

#: The default folder of specs.
SPECS = Path("specs")


@dataclass(frozen=True)
class Draft:
    """The spec that was written, and the attention features of the model that no kernel covers."""

    path: Path
    uncovered: tuple[str, ...]


def init(config: Path, out: Path | None = None, force: bool = False, schema: str | None = None) -> Draft:
    """Write a spec to ``out`` (default ``specs/NAME.yaml``) for the model with the config.json at ``config``.

    ``schema`` is the path of a JSON Schema that the spec names in its first line, relative to the spec.

    Raises UserError if no kernel can serve the config, if the file exists (unless ``force``), or if it cannot be
    written.
    """
    text = (_schema_line(schema) + draft_spec(config)).encode()
    path = out or SPECS / f"{parse(text, os.fspath(config)).name}.yaml"
    check_output(path, config)
    if path.exists() and not force:
        raise UserError("is there already; name another with --out, or add --force to replace it", str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror})", str(path)) from error
    return Draft(path, read_attention(config).uncovered)


def _schema_line(schema: str | None) -> str:
    """The comment that tells the YAML language server its schema; empty without a schema."""
    if schema is None:
        return ""
    if not schema.strip() or not schema.isprintable():
        raise UserError("--schema must be a printable path, because a comment contains it")
    return f"# yaml-language-server: $schema={schema}\n"
