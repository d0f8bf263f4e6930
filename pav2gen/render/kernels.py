"""Renders the files of a spec, and the files that all specs share. The tables here say which template makes which
file.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import pav2gen
from pav2gen.family.spec import Spec
from pav2gen.family.variant import Point
from pav2gen.files import is_leftover
from pav2gen.plan.kernel import AnyKernel
from pav2gen.reading.tuning_file import FOLDER
from pav2gen.render.case_data import data_of
from pav2gen.render.fileset import FileSet
from pav2gen.render.manifest import ManifestRow, table_row, tuned_rows
from pav2gen.render.templates import PACKAGE, Templates, shown
from pav2gen.wording import one_line, spelled

GENERATOR = f"pav2gen {pav2gen.__version__}"

#: The beginning and the end of a comment line in each kind of file.
COMMENTS = {".cu": ("// ", ""), ".md": ("<!-- ", " -->")}
HASH_COMMENT = ("# ", "")
#: A line of a header has at most this many axes.
AXES_OF_A_LINE = 5

#: Template -> file, for the files of the whole package. The runtime is copied beside them.
SHARED_TEMPLATES = {
    "package/__init__.py.j2": "__init__.py",
    "package/dispatch.py.j2": "dispatch.py",
    "package/pytest.ini.j2": "pytest.ini",
    "package/workers.py.j2": "tests/conftest.py",
    "package/gitignore.j2": ".gitignore",
}
#: The only template of SHARED_TEMPLATES that depends on the specs. The header of its file names the specs.
TABLE_TEMPLATE = "package/dispatch.py.j2"
RUNTIME = PACKAGE / "runtime"

#: Template -> file below the spec's folder. The folder is a namespace package, without an __init__.py. pytest imports
#: the packages around a test file, and therefore stops at this folder.
SPEC_TEMPLATES = {"package/README.md.j2": "README.md", "tests/conftest.py.j2": "tests/conftest.py"}

#: Kind of template -> the property of a kernel that gives the file's path.
PATHS = {"torch": "torch_path", "cuda": "cuda_path", "tests": "test_path"}

#: Operator -> its templates by kind: one for each backend, and one for the tests.
KERNEL_TEMPLATES = {
    "decode": {"torch": "torch/kernel.py.j2", "cuda": "cuda/kernel.cu.j2", "tests": "tests/test_kernel.py.j2"},
    "extend": {"torch": "torch/extend.py.j2", "cuda": "cuda/extend.cu.j2", "tests": "tests/test_extend.py.j2"},
    "cache": {"torch": "torch/cache.py.j2", "cuda": "cuda/cache.cu.j2", "tests": "tests/test_cache.py.j2"},
}


#: The variable of a spec's templates that holds the kernels of an operator -> the operator.
GROUPS = {"kernels": "decode", "extenders": "extend", "writers": "cache"}


def render_spec(spec: Spec, family: Sequence[AnyKernel], templates: Templates) -> FileSet:
    """Render all files of a spec: sources and tests of its kernels, a README and a conftest.

    ``family`` has the kernels of the spec. All templates can use ``spec`` and ``header`` (the comment at the top of the
    file, without its last newline). Templates of a kernel can also use ``v`` (the variant), ``p`` (the plan) and
    ``data`` (for tests). Templates of the spec can also use the names in ``GROUPS``, which hold the kernels of each
    operator.

    Raises UserError for a mistake in a template.
    """
    files = FileSet()
    source = {spec.canonical_path: spec.sha256}
    command = f"pav2gen build {shlex.quote(spec.canonical_path)}"
    for operator, kind, template in kernel_templates(spec):
        heading = Heading(template, templates, command, source)
        for kernel in family:
            if kernel.v.operator == operator:
                v, p = kernel
                data = data_of(kernel) if kind == "tests" else None
                text = templates.render(template, spec=spec, v=v, p=p, data=data, header=heading.of(v))
                files.add(getattr(v, PATHS[kind]), text)
    groups = {name: [kernel for kernel in family if kernel.v.operator == operator] for name, operator in GROUPS.items()}
    for template, name in SPEC_TEMPLATES.items():
        header = Heading(template, templates, command, source).text
        files.add(f"{spec.name}/{name}", templates.render(template, spec=spec, header=header, **groups))
    return files


def render_shared(specs: Sequence[Mapping[str, Any]], rows: Sequence[ManifestRow], templates: Templates) -> FileSet:
    """Render the files that all specs share: the package, the dispatch table, and an exact copy of the runtime.

    ``specs`` has the entry ``spec`` of each manifest. ``rows`` has the rows of the dispatch table, in order. Templates
    can use ``specs``, ``rows``, ``tuned`` (the results of tuning), ``keys`` (names of key classes) and ``header``.

    Raises UserError for a mistake in a template.
    """
    files = FileSet()
    sources = {f"specs/{spec['file']}": spec["sha256"] for spec in specs}
    sources |= {path: digest for spec in specs for path, digest in spec.get("tuning", {}).items()}
    keys = sorted({type(row.key).__name__ for row in map(table_row, rows)}) or ["Key"]
    table, tuned = list(map(table_row, rows)), [entry for row in rows for entry in tuned_rows(row)]
    for template, path in SHARED_TEMPLATES.items():
        made_from = sources if template == TABLE_TEMPLATE else {}
        header = Heading(template, templates, "pav2gen build specs/*.yaml", made_from).text
        files.add(path, templates.render(template, specs=specs, rows=table, tuned=tuned, keys=keys, header=header))
    for path, content in runtime_files():
        files.add(path, content)
    return files


def kernel_templates(spec: Spec) -> list[tuple[str, str, str]]:
    """The templates for the kernels of ``spec``, as triples (operator, kind, template). The kind is a backend or
    "tests".
    """
    kinds = (*spec.backends, "tests")
    return [(operator, kind, KERNEL_TEMPLATES[operator][kind]) for operator in spec.operators for kind in kinds]


def runtime_files() -> Iterator[tuple[str, bytes]]:
    """The sources of the runtime, as pairs (path in the generated package, content)."""
    for file in sorted(RUNTIME.rglob("*")):
        path = file.relative_to(RUNTIME.parent).as_posix()
        if not is_leftover(path) and file.is_file():
            yield path, file.read_bytes()


def _kind(path: str) -> str:
    """The label in a file's header for the source at ``path``: ``spec`` or ``tuning``."""
    return "tuning" if PurePosixPath(path).parent.name == FOLDER else "spec"


class Heading:
    """The comment at the top of a generated file: generator, source files, and the command that rebuilds the file."""

    def __init__(self, template: str, templates: Templates, command: str, sources: Mapping[str, str]) -> None:
        """``sources`` are the specs and tuning files that the comment names: path -> sha256."""
        self._begin, self._end = COMMENTS.get(PurePosixPath(template.removesuffix(".j2")).suffix, HASH_COMMENT)
        lines = [
            f"Generated by {GENERATOR}. Do not edit: change the spec, and build again.",
            f"command: {command}",
            *(f"{_kind(path)}: {path} sha256:{digest}" for path, digest in sources.items()),
            f"template: {shown(template)} sha256:{templates.sha256(template)}",
        ]
        self.text = "\n".join(map(self._comment, lines))

    def of(self, v: Point) -> str:
        """The comment for a file of the kernel ``v``. The comment includes the axis values in the form that ``pav2gen
        explain`` takes.
        """
        axes = [f"{axis}={spelled(value)}" for axis, value in v.axes.items()]
        starts = range(0, len(axes), AXES_OF_A_LINE)
        lines = (f"{'     ' if start else 'key: '}{' '.join(axes[start : start + AXES_OF_A_LINE])}" for start in starts)
        return "\n".join((self.text, *map(self._comment, lines)))

    def _comment(self, line: str) -> str:
        """``line`` as a comment. Text that would end the comment is escaped, so that the text cannot become code."""
        return f"{self._begin}{one_line(line).replace('--', '- -') if self._end else one_line(line)}{self._end}"
