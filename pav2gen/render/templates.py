"""Loads and renders the Jinja templates of generated files, and computes the sha256 of each template."""

from __future__ import annotations

import json
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jinja2

from pav2gen.errors import UserError
from pav2gen.files import sha256

PACKAGE = Path(__file__).resolve().parents[1]


def data_folder(name: str) -> Path:
    """Return the path of a folder with data of pav2gen, in an installed wheel or in a clone of the repository.

    name: the name of the folder: ``templates`` or ``specs``.

    Raises UserError if the folder is missing.
    """
    for folder in (PACKAGE / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise UserError(f"this installation of pav2gen has no folder {name!r}; install it again")


class Templates:
    """The Jinja templates in a folder. Rendering fails for a template that uses an undefined variable.

    The name of a template is its path relative to the folder, such as ``torch/kernel.py.j2``. Messages and generated
    files show this name as ``templates/torch/kernel.py.j2``, even if the folder has another name than ``templates``.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Take templates from ``folder``. If ``folder`` is None, take pav2gen's own templates."""
        self._folder = data_folder("templates") if folder is None else folder
        self._sha256: dict[str, str] = {}
        self._compiled: dict[str, jinja2.Template] = {}
        self._environment = _Environment(
            loader=jinja2.FunctionLoader(self._source),
            undefined=jinja2.StrictUndefined,
            autoescape=_is_page,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            auto_reload=False,
        )
        self._environment.filters["literals"] = literals
        self._environment.filters["python"] = python
        self._environment.filters["size"] = size

    def render(self, name: str, **context: object) -> str:
        """Render the template ``name``, and return the text.

        context: the variables of the template.

        Raises UserError for a mistake in the template. The message states the template and the line.
        """
        template = self._compiled.get(name) or self._compile(name)
        try:
            return template.render(context)
        except jinja2.TemplateError as error:
            raise self._mistake(name, error) from error

    def sha256(self, name: str) -> str:
        """Return the sha256 of the file of the template ``name``. Raises UserError if the file is missing or is not a
        valid template.
        """
        if name not in self._compiled:
            self._compile(name)
        return self._sha256[name]

    def record(self, *names: str) -> dict[str, str]:
        """Return the sha256 of the templates ``names``, and of all templates that ``names`` include, import or extend.

        The keys of the result are paths, such as ``templates/torch/kernel.py.j2``. The templates ``names`` must have
        been rendered before.
        """
        used = set(names)
        queue = list(names)
        while queue:
            fresh = self._environment.uses[queue.pop()] - used
            used |= fresh
            queue += fresh
        return {shown(name): self._sha256[name] for name in sorted(used)}

    def _compile(self, name: str) -> jinja2.Template:
        try:
            template = self._compiled[name] = self._environment.get_template(name)
        except jinja2.TemplateError as error:
            raise self._mistake(name, error) from error
        return template

    def _source(self, name: str) -> tuple[str, str, Callable[[], bool]] | None:
        path = self._folder / name
        try:
            content = path.read_bytes()
        except OSError:
            return None
        self._sha256[name] = sha256(content)
        return content.decode(), str(path), lambda: True

    def _mistake(self, name: str, error: jinja2.TemplateError) -> UserError:
        if isinstance(error, jinja2.TemplateNotFound):
            return UserError("there is no such template", shown(str(error.name or name)))
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, jinja2.TemplateSyntaxError):
            frames.append((error.filename or "", error.lineno))
        prefix = f"{self._folder}/"
        places = [f"{shown(file.removeprefix(prefix))}:{line}" for file, line in frames if file.startswith(prefix)]
        return UserError(str(error.message), places[-1] if places else shown(name))


class _Environment(jinja2.Environment):
    """A Jinja environment that records in ``uses`` which other templates each template includes, imports or extends."""

    uses: defaultdict[str, set[str]]

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.uses = defaultdict(set)

    def make_globals(self, d: Any) -> dict[str, Any]:
        """Return the global variables of a template, with the variables in ``d`` added."""
        # Jinja's own ChainMap is slow to copy, and each render copies the variables
        return {**self.globals, **(d or {})}

    def join_path(self, template: str, parent: str) -> str:
        self.uses[parent].add(template)
        return template


def literals(values: Iterable[object]) -> str:
    """Template filter: write ``values`` as Python source, separated by commas, as in the arguments of a call."""
    return ", ".join(map(python, values))


def python(value: object) -> str:
    """Template filter: write ``value`` as Python source.

    A string gets double quotes, and all its characters except printable ASCII are escaped. A named tuple becomes a call
    of its class with keyword arguments.
    """
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = ", ".join(f"{name}={python(field)}" for name, field in value._asdict().items())
        return f"{type(value).__name__}({fields})"
    if isinstance(value, tuple):
        return f"({''.join(f'{python(item)}, ' for item in value)})"
    return repr(value)


def size(num_bytes: int) -> str:
    """Template filter: write a number of bytes as Python source that is easy to read, such as ``8 << 20`` for 8 MiB."""
    for shift in (20, 10):
        if num_bytes and num_bytes % (1 << shift) == 0:
            return f"{num_bytes >> shift} << {shift}"
    return str(num_bytes)


def _is_page(name: str | None) -> bool:
    """Whether the template ``name`` is for an HTML page. In HTML pages, Jinja escapes the values of variables."""
    return bool(name) and str(name).startswith("report/")


def shown(name: str) -> str:
    """Return the path by which messages and generated files name the template ``name``."""
    return f"templates/{name}"
