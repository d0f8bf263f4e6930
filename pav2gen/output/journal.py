"""The journal of a build: a file in the tree that exists while the build changes the tree.

A build that was killed leaves its journal. For each file, the journal has the sha256 of the old content and of the new
content. The next build finds these digests. So it does not take the files for edited by hand, and repairs the tree
without ``--force``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from pav2gen import json_data
from pav2gen.output.transaction import write_all

#: The names of the journal and of the temporary folder for new files. Both are at the root of the generated package.
NAME = ".pav2gen-build.json"
ASIDE = ".pav2gen-build"

#: owner -> path below the package's root -> the sha256 digests of the file's old content and of its new content.
Entries = Mapping[str, Mapping[str, Iterable[str]]]


#: The function that reads the JSON data of a journal.
_READ = json_data.mapping(
    lambda owner: json_data.path(owner) if owner else owner,
    json_data.mapping(json_data.path, json_data.items(json_data.digest)),
)


def read_journal(root: Path) -> dict[str, dict[str, list[str]]]:
    """The entries of the journal. Empty if the journal is missing or if no build wrote it."""
    try:
        entries = _READ(json_data.parse_json((root / NAME).read_bytes()))
    except (OSError, ValueError):
        return {}
    return {owner: {file: list(digests) for file, digests in files.items()} for owner, files in entries.items()}


def begin(root: Path, entries: Entries) -> None:
    """Write the journal with ``entries``, and make an empty temporary folder. Removes the temporary files of an earlier
    build.
    """
    _remove_aside(root)
    os.mkdir(root / ASIDE)
    _write(root, entries)


def end(root: Path, entries: Entries) -> None:
    """Remove the temporary folder and the journal. If there are ``entries``, they replace the journal's content
    instead.
    """
    if entries:
        _write(root, entries)
    _remove_aside(root)
    if not entries and os.path.lexists(root / NAME):
        os.unlink(root / NAME)


def merged(*journals: Entries) -> dict[str, dict[str, set[str]]]:
    """One journal with the entries of all ``journals``."""
    known: dict[str, dict[str, set[str]]] = {}
    for entries in journals:
        for owner, files in entries.items():
            for path, digests in files.items():
                known.setdefault(owner, {}).setdefault(path, set()).update(digests)
    return known


def _write(root: Path, entries: Entries) -> None:
    """Replace the journal with ``entries``, and sync it to the disk, because a power cut may interrupt the next
    steps.
    """
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
