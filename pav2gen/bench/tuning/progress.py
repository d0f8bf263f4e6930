"""The journal of a long measurement: what was measured is kept as it comes, and a run that was cut short goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pav2gen.json_data import Reader, anything, items, parse_json, prose


class Journal:
    """Measurements by their names, in a file of JSON lines whose first says under which circumstances they were made.

    Those of other circumstances (another device, other sources, another number of rounds) are dropped: figures are
    compared only with their like. ``entries`` are the measurements, ``found`` how many of them were there before.
    """

    def __init__(self, path: Path, circumstances: Mapping[str, Any], read: Reader = anything) -> None:
        """``read`` reads a measurement back; what it refuses is measured again."""
        self.path = path
        self.entries: dict[str, Any] = {}
        head = json.dumps(circumstances, sort_keys=True)
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        if lines[:1] == [head.encode()]:
            self.entries = dict(filter(None, (_entry(line, read) for line in lines[1:])))
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


def _entry(line: bytes, read: Reader) -> tuple[str, Any] | None:
    """A measurement; None for a line that was cut short, or that is not as ``add`` writes it."""
    try:
        name, measurement = items(anything)(parse_json(line))
        return prose(name), read(measurement)
    except ValueError:
        return None
