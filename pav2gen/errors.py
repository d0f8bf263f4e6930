"""The exception for a user's mistake. It has a message and a place."""

from __future__ import annotations


class UserError(Exception):
    """A user's mistake. The message says what is wrong, where, and what would work, in one line.

    The command line prints the message and exits with 2. ``where`` is ``file:line`` or ``file``, or empty if the
    mistake is not in a file.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)
