"""Keeps a journal of a long measurement: a file to which each result is appended as soon as it is known.

After an interruption, the next run takes over the results in the journal, and measures only the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pav2gen.json_data import Reader, anything, items, parse_json, prose


class Journal:
    """A file of JSON lines: one line for each measurement, with its name.

    The first line has the conditions of the measurements, such as device, package and rounds. If a file from an earlier
    run has other conditions, its measurements are dropped, because they are not comparable.

    entries: all measurements by name.
    found: how many measurements were taken over from an earlier run.
    """

    def __init__(self, path: Path, circumstances: Mapping[str, Any], read: Reader = anything) -> None:
        """Read the journal at ``path``, if there is one, and write it again without the lines that cannot be used.

        circumstances: the conditions of the measurements in this run.
        read: a function that checks and returns a measurement from the file. If the function raises ValueError, the
        line is dropped.
        """
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
        """Append a measurement to the file, and to ``entries``."""
        self.entries[name] = measurement
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{_line((name, measurement))}\n")

    def remove(self) -> None:
        """Delete the file. Call this after the measurements were written to their final file."""
        self.path.unlink(missing_ok=True)


def _line(entry: tuple[str, Any]) -> str:
    return json.dumps(entry)


def _entry(line: bytes, read: Reader) -> tuple[str, Any] | None:
    """Parse a line of the journal, and return the name and the measurement.

    Returns None for an incomplete line, or a line that ``Journal.add`` cannot have written.
    """
    try:
        name, measurement = items(anything)(parse_json(line))
        return prose(name), read(measurement)
    except ValueError:
        return None
