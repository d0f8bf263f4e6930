"""The one exception for a user's mistake: a message and its place."""

from __future__ import annotations


class UserError(Exception):
    """What happened, where, and what would work, in one line; the command line prints it and exits with 2.

    ``where`` is ``file:line`` or ``file`` when the mistake has a place, else empty.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)
