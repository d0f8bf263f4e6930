"""The journal of a long measurement: what was measured is kept as it comes, and a run that was cut short goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Journal:
    """Measurements by their names, in a file of JSON lines whose first says under which circumstances they were made.

    Those of other circumstances (another device, other sources, another number of rounds) are dropped: figures are
    compared only with their like. ``entries`` are the measurements, ``found`` how many of them were there before.
    """

    def __init__(self, path: Path, circumstances: Mapping[str, Any]) -> None:
        self.path = path
        self.entries: dict[str, Any] = {}
        head = json.dumps(circumstances, sort_keys=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines[:1] == [head]:
            self.entries = dict(filter(None, map(_entry, lines[1:])))
        self.found = len(self.entries)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in [head, *map(_line, self.entries.items())]), encoding="utf-8")

    def add(self, name: str, measurement: Mapping[str, Any]) -> None:
        """Keep a measurement, at once."""
        self.entries[name] = measurement
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{_line((name, measurement))}\n")

    def remove(self) -> None:
        """Forget it: the measurements are where they belong."""
        self.path.unlink(missing_ok=True)


def _line(entry: tuple[str, Any]) -> str:
    return json.dumps(entry)


def _entry(line: str) -> tuple[str, Any] | None:
    """A measurement; None for a line that was cut short."""
    try:
        name, measurement = json.loads(line)
    except ValueError:
        return None
    return name, measurement
