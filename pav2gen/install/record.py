"""INSTALLED.json: what ``pav2gen install`` did to a tree, from what, and how it is taken back. It stands in ``pav2/``.

It is written before the first change, naming the record that it replaces, and again after the last without that: an
install that was killed leaves it behind, and the next install or uninstall knows both states for ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pav2gen.errors import UserError
from pav2gen.files import checked_path
from pav2gen.install.hunks import Hunk

NAME = "INSTALLED.json"
SCHEMA = 1


@dataclass(frozen=True)
class Edit:
    """One source file of vLLM: the sha256 before and after, and what changed, in the text after its BOM."""

    before: str
    after: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Record:
    """One install.

    specs: name -> the sha256 of the spec and the number of its kernels. all_specs: whether they were all there were.
    files: path below ``pav2/`` -> sha256. edits: path below vLLM's folder -> edit. replaces: the record of the install
    before this one, while this one is under way.
    """

    generator: str
    specs: Mapping[str, Mapping[str, Any]]
    all_specs: bool
    min_seq_len: int | None
    tests: bool
    prebuilt: str
    digest: str
    files: Mapping[str, str]
    edits: Mapping[str, Edit]
    complete: bool = True
    replaces: Record | None = None

    def content(self) -> bytes:
        """The bytes of the file."""
        return (json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()

    def under_way(self, earlier: Record | None) -> Record:
        """This record as it stands while its install is under way."""
        return replace(self, complete=False, replaces=earlier and replace(earlier, replaces=None))

    def states(self) -> list[Record]:
        """The installs that a file of the tree may come from: this one, and the one that it was replacing."""
        return [self, *([self.replaces] if self.replaces else [])]

    def known(self, path: str) -> set[str]:
        """The sha256s that a file below ``pav2/`` has if nobody edited it."""
        return {state.files[path] for state in self.states() if path in state.files}


def parse(content: bytes, where: str) -> Record:
    """The record in a file. Raises UserError where it is not as an install wrote it."""
    try:
        data = json.loads(content)
        if data.pop("schema") != SCHEMA:
            raise ValueError("of another pav2gen")
        return _record(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"is not as pav2gen install wrote it ({error}); restore the tree from version control", where
        ) from error


def _record(data: dict[str, Any]) -> Record:
    edits = {
        checked_path(path): Edit(edit["before"], edit["after"], tuple(Hunk(*map(str, hunk)) for hunk in edit["hunks"]))
        for path, edit in data["edits"].items()
    }
    files = {checked_path(path): str(digest) for path, digest in data["files"].items()}
    replaces = _record(data["replaces"]) if data["replaces"] else None
    return Record(**{**data, "edits": edits, "files": files, "replaces": replaces})
