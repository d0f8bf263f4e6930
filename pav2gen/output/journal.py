"""Reads and writes the journal of a build: a file in the tree that exists while the build changes the tree.

For each file that the build changes, the journal has the SHA-256 of the old content and of the new content. A build
that was killed leaves its journal. The next build compares the files with these digests. A file with one of these
digests was not edited by hand, so the build repairs it without ``--force``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from pav2gen import json_data
from pav2gen.output.transaction import write_all

#: The names of the journal and of the temporary folder for new files. Both are directly in the folder of the tree.
NAME = ".pav2gen-build.json"
ASIDE = ".pav2gen-build"

#: The content of a journal: owner -> path of a file, relative to the tree -> the SHA-256 digests of the old and the new
#: content. A file that is new or removed has only one digest.
Entries = Mapping[str, Mapping[str, Iterable[str]]]


#: A function that checks the JSON data of a journal, and returns it as ``Entries``.
_READ = json_data.mapping(
    lambda owner: json_data.path(owner) if owner else owner,
    json_data.mapping(json_data.path, json_data.items(json_data.digest)),
)


def read_journal(root: Path) -> dict[str, dict[str, list[str]]]:
    """Return the content of the journal in the folder ``root``. The result is empty if the journal is missing or
    damaged.
    """
    try:
        entries = _READ(json_data.parse_json((root / NAME).read_bytes()))
    except (OSError, ValueError):
        return {}
    return {owner: {file: list(digests) for file, digests in files.items()} for owner, files in entries.items()}


def begin(root: Path, entries: Entries) -> None:
    """Make an empty temporary folder in the folder ``root``, and write the journal with ``entries``.

    The temporary files of an earlier build are removed.
    """
    _remove_aside(root)
    os.mkdir(root / ASIDE)
    _write(root, entries)


def end(root: Path, entries: Entries) -> None:
    """Remove the temporary folder and the journal from the folder ``root``.

    If ``entries`` is not empty, the journal stays and contains only ``entries``.
    """
    if entries:
        _write(root, entries)
    _remove_aside(root)
    if not entries and os.path.lexists(root / NAME):
        os.unlink(root / NAME)


def merged(*journals: Entries) -> dict[str, dict[str, set[str]]]:
    """Return the content of one journal that has the entries of all ``journals``."""
    known: dict[str, dict[str, set[str]]] = {}
    for entries in journals:
        for owner, files in entries.items():
            for path, digests in files.items():
                known.setdefault(owner, {}).setdefault(path, set()).update(digests)
    return known


def _write(root: Path, entries: Entries) -> None:
    """Replace the content of the journal in the folder ``root`` with ``entries``, and sync the journal to the disk."""
    data = {owner: {path: sorted(digests) for path, digests in files.items()} for owner, files in entries.items()}
    draft = root / ASIDE / NAME
    os.makedirs(draft.parent, exist_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(handle, json.dumps(data).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(draft, root / NAME)
    folder = os.open(root, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_aside(root: Path) -> None:
    if os.path.lexists(root / ASIDE):
        shutil.rmtree(root / ASIDE)
