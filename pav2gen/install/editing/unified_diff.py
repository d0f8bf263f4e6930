"""Makes the unified diffs that ``install --dry-run`` and ``uninstall --dry-run`` print."""

from __future__ import annotations

import difflib


def unified(name: str, before: bytes, after: bytes) -> str:
    """Return the unified diff from ``before`` to ``after``, in the form that git prints.

    name: the path of the file in the diff.

    The diff is empty if both contents are equal.
    """
    old, new = (content.decode(errors="backslashreplace").splitlines(keepends=True) for content in (before, after))
    return "".join(_ended(line) for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
