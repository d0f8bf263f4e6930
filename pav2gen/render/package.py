"""Renders all files of a build in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pav2gen.plan.kernel import AnyKernel
from pav2gen.reading.selection import Selection
from pav2gen.reading.tuning_file import Tuning
from pav2gen.render import manifest
from pav2gen.render.fileset import FileSet
from pav2gen.render.kernels import (
    GENERATOR,
    SHARED_TEMPLATES,
    SPEC_TEMPLATES,
    kernel_templates,
    render_shared,
    render_spec,
)
from pav2gen.render.manifest import SHARED, Manifest, ManifestRow, manifest_row
from pav2gen.render.templates import Templates


@dataclass(frozen=True)
class Package:
    """The rendered files of a build, including each MANIFEST.json.

    files: maps each owner to the owner's files. An owner is the name of a built spec, or ``SHARED`` for the files that
    all specs share.
    clashes: messages to the user about kernel keys that several specs have.
    """

    files: Mapping[str, FileSet]
    clashes: tuple[str, ...]


def render_package(selections: Iterable[Selection], others: Iterable[Manifest], templates: Templates) -> Package:
    """Render the files of the specs that are built, and the files that all specs of the generated package share.

    selections: the specs that are built, with the kernels to render.
    others: the manifests of the other specs in the generated package. The rows of these manifests go into the dispatch
    table too.

    Raises UserError for a mistake in a template, and for two specs with different modifications of the same name.
    """
    files: dict[str, FileSet] = {}
    manifests = list(others)
    for chosen in selections:
        files[chosen.spec.name] = rendered = render_spec(chosen.spec, chosen.built, templates)
        manifests.append(_add_manifest(chosen.spec.name, rendered, _entries(chosen, templates)))
    manifests.sort(key=lambda entry: entry.owner)
    rows, clashes = manifest.merge(manifests)
    files[SHARED] = shared = render_shared([entry.spec for entry in manifests], rows, templates)
    _add_manifest(SHARED, shared, _shared_entries(templates))
    return Package(files, clashes)


def _add_manifest(owner: str, files: FileSet, entries: Mapping[str, object]) -> Manifest:
    """Make the manifest of ``owner``, which lists ``files``, and return it. Add its MANIFEST.json to ``files``.

    entries: the fields of the manifest other than ``owner`` and ``files``.
    """
    described = manifest.describe(owner, files, **entries)
    files.add(described.path, described.content())
    return described


def _entries(chosen: Selection, templates: Templates) -> dict[str, object]:
    spec = chosen.spec
    return {
        "generator": GENERATOR,
        "spec": {
            "name": spec.name,
            "about": spec.about,
            "file": spec.file_name,
            "sha256": spec.sha256,
            "tuning": {tuning.path: tuning.sha256 for tuning in chosen.tuned},
        },
        "filter": chosen.filters,
        "templates": templates.record(*(template for _, _, template in kernel_templates(spec)), *SPEC_TEMPLATES),
        "rows": tuple(_row(kernel, chosen.tuned) for kernel in chosen.built),
    }


def _row(kernel: AnyKernel, tuned: Iterable[Tuning]) -> ManifestRow:
    """Return the row of ``kernel`` in the manifest of its spec.

    tuned: the tuning files of the spec. The row contains those measurements in these files in which ``kernel`` was the
    fastest.
    """
    row = kernel.p.row()
    decodes = row.operator == "decode"
    measured = [entry for tuning in tuned for entry in tuning.of(row.key, row.partition_size)] if decodes else []
    return manifest_row(row, tuned=measured, test=kernel.v.test_path, figures=kernel.p.figures)


def _shared_entries(templates: Templates) -> dict[str, object]:
    return {
        "generator": GENERATOR,
        "spec": {},
        "filter": (),
        "templates": templates.record(*SHARED_TEMPLATES),
        "rows": (),
    }
