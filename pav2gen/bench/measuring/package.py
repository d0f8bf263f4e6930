"""Renders and imports the generated package whose kernels are measured.

The package is rendered from the current spec, not taken from ``generated/``.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import itertools
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from pav2gen.reading.selection import Selection
from pav2gen.render.package import render_package
from pav2gen.render.templates import Templates

_numbers = itertools.count()


def render(chosen: Selection, folder: Path) -> str:
    """Write a package with the kernels of ``chosen`` to ``folder``. Returns a SHA-256 digest of all its files.

    Raises UserError for a mistake in a template.
    """
    digest = hashlib.sha256()
    for files in render_package([chosen], [], Templates()).files.values():
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            digest.update(f"{path} {files.digest(path)}\n".encode())
    return digest.hexdigest()


def load(root: Path) -> ModuleType:
    """Import the package in the folder ``root``, under a module name that is unique in this process."""
    name = f"pav2_measured_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, root / "__init__.py")
    assert spec and spec.loader, "a rendered package has an __init__.py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def measured(chosen: Selection) -> tuple[ModuleType, str]:
    """Render the package of ``chosen`` into a temporary folder, and import it.

    Returns the imported package, and a SHA-256 digest of its files.
    """
    folder = Path(tempfile.mkdtemp(prefix="pav2gen-bench-"))
    atexit.register(functools.partial(shutil.rmtree, folder, ignore_errors=True))
    digest = render(chosen, folder)
    return load(folder), digest
