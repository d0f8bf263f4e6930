"""The exception for a user's mistake."""

from __future__ import annotations


class UserError(Exception):
    """A user's mistake. The message says in one line what is wrong, and what the user can do.

    The command line prints the place of the mistake and the message, and exits with code 2.

    where: the place of the mistake, as ``file:line`` or ``file``. ``where`` is empty if the mistake is not in a file.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)
