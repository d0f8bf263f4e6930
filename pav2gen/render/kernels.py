"""Renders the files of a spec, and the files that all specs share, from templates."""

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

#: Ending of a file name -> the text before and the text after a comment in such a file. Other files have comments like
#: HASH_COMMENT.
COMMENTS = {".cu": ("// ", ""), ".md": ("<!-- ", " -->")}
HASH_COMMENT = ("# ", "")
#: The largest number of axis values on one line of the comment at the top of a kernel's file.
AXES_OF_A_LINE = 5

#: Template of a file that all specs share -> path of this file in the generated package. The files of the runtime have
#: no template: they are copied.
SHARED_TEMPLATES = {
    "package/__init__.py.j2": "__init__.py",
    "package/dispatch.py.j2": "dispatch.py",
    "package/pytest.ini.j2": "pytest.ini",
    "package/workers.py.j2": "tests/conftest.py",
    "package/gitignore.j2": ".gitignore",
}
#: The template of the dispatch table. Of all SHARED_TEMPLATES, only this one depends on specs, so the comment at the
#: top of its file names them.
TABLE_TEMPLATE = "package/dispatch.py.j2"
RUNTIME = PACKAGE / "runtime"

#: Template of a file that each spec has once -> path of this file in the spec's folder. The folder has no __init__.py,
#: because pytest would then also import the package above it.
SPEC_TEMPLATES = {"package/README.md.j2": "README.md", "tests/conftest.py.j2": "tests/conftest.py"}

#: Kind of template, as in KERNEL_TEMPLATES -> the attribute of a variant that has the path of the rendered file.
PATHS = {"torch": "torch_path", "cuda": "cuda_path", "tests": "test_path"}

#: Operator -> kind of template -> name of the template. The kinds are the two backends, and "tests" for the file with a
#: kernel's tests.
KERNEL_TEMPLATES = {
    "decode": {"torch": "torch/kernel.py.j2", "cuda": "cuda/kernel.cu.j2", "tests": "tests/test_kernel.py.j2"},
    "extend": {"torch": "torch/extend.py.j2", "cuda": "cuda/extend.cu.j2", "tests": "tests/test_extend.py.j2"},
    "cache": {"torch": "torch/cache.py.j2", "cuda": "cuda/cache.cu.j2", "tests": "tests/test_cache.py.j2"},
}


#: Name of a variable of the templates in SPEC_TEMPLATES -> an operator. The variable holds all kernels of this
#: operator, with their plans.
GROUPS = {"kernels": "decode", "extenders": "extend", "writers": "cache"}


def render_spec(spec: Spec, family: Sequence[AnyKernel], templates: Templates) -> FileSet:
    """Render all files of a spec: the sources and tests of its kernels, a README and a conftest.py.

    family: the kernels to render, with their plans.

    Every template has the variables ``spec`` and ``header``, which is the comment at the top of the file without the
    last newline. The templates of a kernel also have ``v`` (the kernel's variant), ``p`` (the kernel's plan) and
    ``data`` (the input sizes of tests; None in templates of sources). The templates for the README and the conftest.py
    also have the variables in ``GROUPS``.

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
    """Render the files that all specs share: the package's ``__init__.py``, the dispatch table, settings for pytest and
    git, and an exact copy of the runtime.

    specs: the value of the field ``spec`` in the manifest of each spec.
    rows: the rows of the dispatch table, as in manifests, in order.

    Every template has these variables: ``specs``, ``rows`` (as ``Row``), ``tuned`` (the results of tuning), ``keys``
    (the names of the classes of kernel keys), ``header`` (the comment at the top of the file).

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
    """Return the templates of the kernels of ``spec``, as tuples (operator, kind, template).

    The kinds are the backends of the spec and "tests".
    """
    kinds = (*spec.backends, "tests")
    return [(operator, kind, KERNEL_TEMPLATES[operator][kind]) for operator in spec.operators for kind in kinds]


def runtime_files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the runtime as pairs (path in the generated package, content)."""
    for file in sorted(RUNTIME.rglob("*")):
        path = file.relative_to(RUNTIME.parent).as_posix()
        if not is_leftover(path) and file.is_file():
            yield path, file.read_bytes()


def _kind(path: str) -> str:
    """Return ``tuning`` if ``path`` is the path of a tuning file, else ``spec``."""
    return "tuning" if PurePosixPath(path).parent.name == FOLDER else "spec"


class Heading:
    """The comment at the top of a generated file. The heading has pav2gen's version, the command that rebuilds the
    file, and the sha256 digests of the file's sources and template.
    """

    def __init__(self, template: str, templates: Templates, command: str, sources: Mapping[str, str]) -> None:
        """Make the comment for the files that are rendered from one template.

        template: the name of this template.
        templates: all templates, including this one.
        command: the command that rebuilds the files.
        sources: the sha256 of each spec and tuning file that the files are made from, by path.
        """
        self._begin, self._end = COMMENTS.get(PurePosixPath(template.removesuffix(".j2")).suffix, HASH_COMMENT)
        lines = [
            f"Generated by {GENERATOR}. Do not edit: change the spec, and build again.",
            f"command: {command}",
            *(f"{_kind(path)}: {path} sha256:{digest}" for path, digest in sources.items()),
            f"template: {shown(template)} sha256:{templates.sha256(template)}",
        ]
        self.text = "\n".join(map(self._comment, lines))

    def of(self, v: Point) -> str:
        """Return the comment at the top of a generated file of the kernel ``v``.

        Its last lines are the kernel's axis values, in the form that ``pav2gen explain`` takes.
        """
        axes = [f"{axis}={spelled(value)}" for axis, value in v.axes.items()]
        starts = range(0, len(axes), AXES_OF_A_LINE)
        lines = (f"{'     ' if start else 'key: '}{' '.join(axes[start : start + AXES_OF_A_LINE])}" for start in starts)
        return "\n".join((self.text, *map(self._comment, lines)))

    def _comment(self, line: str) -> str:
        """Return ``line`` as a comment. Characters that would end the comment are changed."""
        return f"{self._begin}{one_line(line).replace('--', '- -') if self._end else one_line(line)}{self._end}"
