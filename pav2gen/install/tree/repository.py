"""Commits the changes of an install in the git repository that contains the vLLM trees."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.install.tree.trees import VllmTree


class Repository:
    """The git work tree that contains all vLLM trees of an install."""

    def __init__(self, trees: Sequence[VllmTree]) -> None:
        """Find the git work tree that contains ``trees``.

        Raises UserError if there is no work tree, if ``trees`` are in different work trees, or if the work tree has
        uncommitted changes.
        """
        self._shown = trees[0].shown
        tops = {self._git(tree.folder, "rev-parse", "--show-toplevel").strip() for tree in trees}
        if len(tops) > 1:
            raise UserError(
                f"--commit: the trees lie in {len(tops)} repositories; install into one at a time", self._shown
            )
        self._top = Path(tops.pop())
        dirty = self._git(self._top, "status", "--porcelain").splitlines()
        if dirty:
            raise UserError(
                f"--commit: the work tree is dirty ({dirty[0][3:]}{', ...' if dirty[1:] else ''}); "
                "commit or stash that first. Nothing was changed",
                self._shown,
            )

    def commit(self, paths: Sequence[Path], message: str) -> str:
        """Commit the present state of the files ``paths``, including removed files. Return the commit's short hash.

        Raises UserError if git refuses to commit, for example because of a git hook. The files are then no longer
        staged.
        """
        names = [str(path.relative_to(self._top)) for path in paths]
        tracked = set(self._git(self._top, "ls-files", "-z", "--", *names).split("\0"))
        names = [name for name in names if name in tracked or (self._top / name).exists()]
        try:
            self._git(self._top, "add", "--all", "--force", "--", *names)
            self._git(self._top, "commit", "--quiet", "--message", message)
        except UserError:
            with contextlib.suppress(UserError):
                self._git(self._top, "reset", "--quiet", "--", *names)
            raise
        return self._git(self._top, "rev-parse", "--short", "HEAD").strip()

    def _git(self, folder: Path, *arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, encoding="utf-8", errors="surrogateescape"
            )
        except OSError as error:
            raise UserError(f"--commit: git cannot be run ({error.strerror})", self._shown) from error
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
            raise UserError(f"--commit: git {arguments[0]} says: {lines[0]}; nothing was changed", self._shown)
        return done.stdout
