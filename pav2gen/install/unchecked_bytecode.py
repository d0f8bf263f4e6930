"""Whether Python runs what it compiled of a source without a look at the source: then an edit of that has no effect."""

from __future__ import annotations

from pathlib import Path

#: In the second word of a compiled file: it is found by the source's hash, and that hash is checked.
HASHED, CHECKED = 1, 2


def unchecked(source: Path) -> list[Path]:
    """The compiled files of ``source`` that are run unchecked, sorted."""
    return [file for file in sorted(source.parent.glob(f"__pycache__/{source.stem}.*.pyc")) if _flags(file) == HASHED]


def _flags(file: Path) -> int:
    with file.open("rb") as content:
        return int.from_bytes(content.read(8)[4:], "little") & (HASHED | CHECKED)
