"""Finds compiled Python files (``.pyc``) that Python runs even if their source file was edited later."""

from __future__ import annotations

from pathlib import Path

#: Flags in bytes 4 to 7 of a compiled file. HASHED: the file contains a hash of its source file. CHECKED: Python
#: compares this hash with the source file before it runs the compiled file.
HASHED, CHECKED = 1, 2


def unchecked(source: Path) -> list[Path]:
    """Return the compiled files of ``source`` that Python runs without a comparison with ``source``, sorted."""
    return [file for file in sorted(source.parent.glob(f"__pycache__/{source.stem}.*.pyc")) if _flags(file) == HASHED]


def _flags(file: Path) -> int:
    with file.open("rb") as content:
        return int.from_bytes(content.read(8)[4:], "little") & (HASHED | CHECKED)
