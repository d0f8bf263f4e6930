"""What is built: spec files, and of each the variants that ``--filter`` selects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from pav2gen.errors import UserError
from pav2gen.family.axes import AXES
from pav2gen.family.variant import Variant
from pav2gen.plan.kernel import Kernel, kernels
from pav2gen.reading import spec_file as spec
from pav2gen.reading.spec_file import Spec
from pav2gen.reading.tuning_file import Tuning, load_all
from pav2gen.wording import did_you_mean, quoted, spelled

Condition = Callable[[Variant], bool]


@dataclass(frozen=True)
class Selection:
    """A spec, where it was read, and its kernels: all of them, unless ``filters`` say which; and what was tuned."""

    spec: Spec
    path: Path
    kernels: tuple[Kernel, ...]
    filters: tuple[str, ...]
    tuned: tuple[Tuning, ...] = ()


def load(paths: Iterable[Path], filters: Sequence[str] = (), tuned: bool = True) -> list[Selection]:
    """What ``filters`` select of the specs at ``paths``, sorted by name; specs of which they select none are left out.

    ``tuned`` says whether their tuning files are read too. Raises UserError for a bad spec or tuning file, a name that
    two specs have, and a filter that selects nothing.
    """
    specs: dict[str, tuple[Spec, Path]] = {}
    for path in paths:
        loaded = _with_readable_name(spec.load(path))
        _, first = specs.setdefault(loaded.name, (loaded, path))
        if not os.path.samefile(first, path):
            raise UserError(f"the name {loaded.name} is also that of {first}; each spec needs its own", str(path))
    points = [variant for name in sorted(specs) for variant in spec.variants(specs[name][0])]
    chosen: dict[str, list[Variant]] = {}
    for variant in select(points, filters):
        chosen.setdefault(variant.spec, []).append(variant)
    return [
        Selection(
            *specs[name],
            kernels(specs[name][0], variants),
            tuple(filters),
            load_all(specs[name][1], specs[name][0]) if tuned else (),
        )
        for name, variants in chosen.items()
    ]


def _with_readable_name(loaded: Spec) -> Spec:
    """The spec with its file's name as UTF-8 has it, in whatever locale it was read: headers name it."""
    try:
        name = os.fsencode(loaded.file_name).decode()
    except UnicodeDecodeError:
        name = "\n"
    if not name.isprintable():
        file = loaded.file_name.encode("unicode_escape").decode()
        raise UserError("the file's name goes into headers, and has characters that cannot be printed; rename it", file)
    return replace(loaded, file_name=name)


def select(variants: Iterable[Variant], filters: Sequence[str]) -> tuple[Variant, ...]:
    """The variants that ``filters`` select, in their order; all if there are none.

    A filter is a glob of slugs (``hd256_*_f16_*``) or ``axis=value``. Filters on one axis, and globs, add up; those on
    different axes narrow. Raises UserError for an unknown axis and for a filter that selects nothing.
    """
    points = tuple(variants)
    groups: dict[str, list[Condition]] = {}
    for text in filters:
        subject, condition = _condition(text)
        if not any(map(condition, points)):
            raise UserError(f"--filter {quoted(text)} selects none of {len(points)} variants; pav2gen list shows them")
        groups.setdefault(subject, []).append(condition)
    selected = tuple(point for point in points if all(any(one(point) for one in group) for group in groups.values()))
    if not selected:
        raise UserError("the filters together select nothing; pav2gen list shows the variants")
    return selected


def _condition(text: str) -> tuple[str, Condition]:
    """What a filter is about, an axis or the slug, and its condition."""
    axis, equals, value = text.partition("=")
    if not equals:
        return "slug", lambda variant: fnmatchcase(variant.slug, text)
    if axis not in AXES:
        raise UserError(f"--filter {quoted(text)} names no axis; {did_you_mean(axis, AXES)}")
    wanted = AXES[axis].aliases.get(value, value)
    return axis, lambda variant: spelled(getattr(variant, axis)) == wanted
