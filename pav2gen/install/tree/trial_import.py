"""Tests, before an install, that the Python interpreter that will run vLLM can import the generated package."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pav2gen.errors import UserError

#: The exit code with which the test process says that its Python has no torch.
NO_TORCH = 9
SECONDS = 300

_TRIAL = f"""\
import importlib.util, sys
if importlib.util.find_spec("torch") is None:
    sys.exit({NO_TORCH})
import pav2_trial.hooks
"""


def try_import(files: Mapping[str, bytes], python: str) -> bool:
    """Import the package ``files`` in a new Python process. Return True, or False if that Python has no torch.

    files: maps the path of each file in the package to its content.
    python: the name or path of a Python interpreter.

    Raises UserError with the last line of Python's error message if the import fails.
    """
    with tempfile.TemporaryDirectory(prefix="pav2gen-") as folder:
        for path, content in files.items():
            file = Path(folder, "pav2_trial", path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": ""}
        command = [python, "-c", _TRIAL]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(
                f"cannot import the package ({getattr(error, 'strerror', None) or error})", python
            ) from error
    if done.returncode == NO_TORCH:
        return False
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"cannot import the package ({last}); nothing was changed", python)
    return True
