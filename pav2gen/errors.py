"""The one exception that stands for a user's mistake: a sentence, and where to look."""

from __future__ import annotations

import os
from pathlib import Path


class UserError(Exception):
    """What happened, where, and what would work, in one line; the command line prints it and exits with 2.

    ``where`` is ``file:line`` or ``file`` when the mistake has a place, else empty.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


def check_replaceable(path: Path, begins: bytes, what: str) -> None:
    """Raise UserError where a command would write to ``path`` over something else than ``what``, by its first bytes."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(len(begins))
    if start and start != begins:
        raise UserError(f"is there already, and is no {what}; write to another file", str(path))


def check_output(path: Path, *inputs: Path) -> None:
    """Raise UserError where a command would write to ``path`` over one of the files that it reads."""
    for given in inputs:
        if os.path.realpath(path) == os.path.realpath(given):
            raise UserError("is read by this command, which would replace it; write to another file", str(path))
