"""From a spec and its kernels to a FileSet: which template makes which file, and the header that says so."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import pav2gen
from pav2gen.family.axes import AXES
from pav2gen.family.spec import Spec
from pav2gen.family.variant import Variant
from pav2gen.files import is_leftover
from pav2gen.plan.kernel import Kernel
from pav2gen.reading.tuning_file import FOLDER
from pav2gen.render.case_data import data_of
from pav2gen.render.fileset import FileSet
from pav2gen.render.manifest import ManifestRow, table_row, tuned_rows
from pav2gen.render.templates import PACKAGE, Templates, shown
from pav2gen.wording import one_line, spelled

GENERATOR = f"pav2gen {pav2gen.__version__}"

#: How a line of a header is written in each kind of file.
COMMENTS = {".cu": ("// ", ""), ".md": ("<!-- ", " -->")}
HASH_COMMENT = ("# ", "")
#: Of a variant's axes, so many stand on the first of two lines.
FIRST_AXES = 5

#: Template -> file, of the package as a whole. The runtime is copied beside them.
SHARED_TEMPLATES = {
    "package/__init__.py.j2": "__init__.py",
    "package/dispatch.py.j2": "dispatch.py",
    "package/pytest.ini.j2": "pytest.ini",
    "package/gitignore.j2": ".gitignore",
}
#: The one of them that is made from specs, and names them in its header.
TABLE_TEMPLATE = "package/dispatch.py.j2"
RUNTIME = PACKAGE / "runtime"

#: Template -> file, of a spec, below its folder. The folder is a namespace package: it has no __init__.py, so that
#: pytest, which imports the packages that a test file stands in, never imports the tree around it.
SPEC_TEMPLATES = {"package/README.md.j2": "README.md", "tests/conftest.py.j2": "tests/conftest.py"}

#: Template -> the property of a variant that names the file, of a kernel.
TEST_TEMPLATES = {"tests/test_kernel.py.j2": "test_path"}
BACKEND_TEMPLATES = {"torch": {"torch/kernel.py.j2": "torch_path"}, "cuda": {"cuda/kernel.cu.j2": "cuda_path"}}


def render_spec(spec: Spec, family: Sequence[Kernel], templates: Templates) -> FileSet:
    """Every file of a spec: a source for each backend and a test for each kernel, the README, the conftest.

    Templates see ``spec``, ``header`` (a comment, without its last newline), and ``v`` and ``p`` for a kernel, or
    ``kernels`` (all of ``family``) for the spec. Raises UserError for a mistake in a template.
    """
    files = FileSet()
    source = {spec.canonical_path: spec.sha256}
    command = f"pav2gen build {shlex.quote(spec.canonical_path)}"
    for template, attribute in kernel_templates(spec).items():
        heading = Heading(template, templates, command, source)
        for kernel in family:
            v, p = kernel
            data = data_of(kernel) if template in TEST_TEMPLATES else None
            text = templates.render(template, spec=spec, v=v, p=p, data=data, header=heading.of(v))
            files.add(getattr(v, attribute), text)
    for template, name in SPEC_TEMPLATES.items():
        header = Heading(template, templates, command, source).text
        files.add(f"{spec.name}/{name}", templates.render(template, spec=spec, kernels=family, header=header))
    return files


def render_shared(specs: Sequence[Mapping[str, Any]], rows: Sequence[ManifestRow], templates: Templates) -> FileSet:
    """The files that all specs share: the package, the dispatch table, and the runtime, copied as it is.

    ``rows`` are those of the manifests that serve a key, in order. Templates see ``specs`` (the ``spec`` entry of each
    manifest), ``rows`` and ``tuned`` (of the dispatch table) and ``header``.

    Raises UserError for a mistake in a template.
    """
    files = FileSet()
    sources = {f"specs/{spec['file']}": spec["sha256"] for spec in specs}
    sources |= {path: digest for spec in specs for path, digest in spec.get("tuning", {}).items()}
    table, tuned = list(map(table_row, rows)), [entry for row in rows for entry in tuned_rows(row)]
    for template, path in SHARED_TEMPLATES.items():
        made_from = sources if template == TABLE_TEMPLATE else {}
        header = Heading(template, templates, "pav2gen build specs/*.yaml", made_from).text
        files.add(path, templates.render(template, specs=specs, rows=table, tuned=tuned, header=header))
    for path, content in runtime_files():
        files.add(path, content)
    return files


def kernel_templates(spec: Spec) -> dict[str, str]:
    """The templates of one kernel of ``spec``: template -> the property of the variant that names the file."""
    sources = (BACKEND_TEMPLATES[backend] for backend in spec.backends)
    return {
        template: attribute for templates in (*sources, TEST_TEMPLATES) for template, attribute in templates.items()
    }


def runtime_files() -> Iterator[tuple[str, bytes]]:
    """The runtime's sources: path below the generated package, content."""
    for file in sorted(RUNTIME.rglob("*")):
        path = file.relative_to(RUNTIME.parent).as_posix()
        if not is_leftover(path) and file.is_file():
            yield path, file.read_bytes()


def _kind(path: str) -> str:
    """What the header of a file calls one of its sources."""
    return "tuning" if PurePosixPath(path).parent.name == FOLDER else "spec"


class Heading:
    """The header of every file of one template: what made it, from what, and the command to type."""

    def __init__(self, template: str, templates: Templates, command: str, sources: Mapping[str, str]) -> None:
        """A header of ``template``. ``sources`` are the specs and tuning files that it is made of: path -> sha256."""
        self._begin, self._end = COMMENTS.get(PurePosixPath(template.removesuffix(".j2")).suffix, HASH_COMMENT)
        lines = [
            f"Generated by {GENERATOR}. Do not edit: change the spec, and build again.",
            f"command: {command}",
            *(f"{_kind(path)}: {path} sha256:{digest}" for path, digest in sources.items()),
            f"template: {shown(template)} sha256:{templates.sha256(template)}",
        ]
        self.text = "\n".join(map(self._comment, lines))

    def of(self, v: Variant) -> str:
        """The header of a file of ``v``: ``text``, and the axes as ``explain`` takes them. No newline at its end."""
        axes = [f"{axis}={spelled(getattr(v, axis))}" for axis in AXES]
        first, second = " ".join(axes[:FIRST_AXES]), " ".join(axes[FIRST_AXES:])
        return f"{self.text}\n{self._comment(f'key: {first}')}\n{self._comment(f'     {second}')}"

    def _comment(self, line: str) -> str:
        """A line as a comment. What would end the comment is escaped: a header never becomes code."""
        return f"{self._begin}{one_line(line).replace('--', '- -') if self._end else one_line(line)}{self._end}"
