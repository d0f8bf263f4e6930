"""Finds compiled Python files that hide an edit of their source: Python runs them without checking the source."""

from __future__ import annotations

from pathlib import Path

#: Flags in the second word of a compiled file. HASHED: the file names its source by a hash. CHECKED: Python checks it.
HASHED, CHECKED = 1, 2


def unchecked(source: Path) -> list[Path]:
    """Return the compiled files of ``source`` that Python runs without checking the source, sorted."""
    return [file for file in sorted(source.parent.glob(f"__pycache__/{source.stem}.*.pyc")) if _flags(file) == HASHED]


def _flags(file: Path) -> int:
    with file.open("rb") as content:
        return int.from_bytes(content.read(8)[4:], "little") & (HASHED | CHECKED)
