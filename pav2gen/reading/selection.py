"""Loads the spec files that the user names on the command line, and selects kernels by the option ``--filter``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from pav2gen.errors import UserError
from pav2gen.family.axes import AXES
from pav2gen.family.spec import points
from pav2gen.family.variant import OPERATORS, Point
from pav2gen.plan.kernel import AnyKernel, Kernel, kernels
from pav2gen.reading import spec_file as spec
from pav2gen.reading.spec_file import Spec
from pav2gen.reading.tuning_file import Tuning, load_all
from pav2gen.wording import did_you_mean, quoted, spelled

Condition = Callable[[Point], bool]
PointT = TypeVar("PointT", bound=Point)


@dataclass(frozen=True)
class Selection:
    """A loaded spec file, and the kernels of the spec file that the option ``--filter`` selects.

    path: the path of the spec file.
    built: the selected kernels of all operators (decode, extend and cache); without filters, all kernels.
    filters: the texts of the filters.
    tuned: the content of the spec's tuning files.
    """

    spec: Spec
    path: Path
    built: tuple[AnyKernel, ...]
    filters: tuple[str, ...]
    tuned: tuple[Tuning, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The selected decode kernels."""
        return tuple(each for each in self.built if isinstance(each, Kernel))


def load(paths: Iterable[Path], filters: Sequence[str] = (), tuned: bool = True) -> list[Selection]:
    """Load the spec files at ``paths``, and select their kernels by ``filters``.

    The result is sorted by the names of the specs. The result leaves out specs without a selected kernel.

    tuned: whether to read the tuning files of the specs too.

    Raises UserError for an invalid spec file or tuning file, and for two specs with the same name. Raises UserError too
    for a filter that selects no kernel.
    """
    specs: dict[str, tuple[Spec, Path]] = {}
    for path in paths:
        loaded = _with_readable_name(spec.load(path))
        _, first = specs.setdefault(loaded.name, (loaded, path))
        if not os.path.samefile(first, path):
            raise UserError(
                f"the name {loaded.name} is already that of {first}; each spec needs a name of its own", str(path)
            )
    family = [point for name in sorted(specs) for point in points(specs[name][0])]
    chosen: dict[str, list[Point]] = {}
    for point in select(family, filters):
        chosen.setdefault(point.spec, []).append(point)
    return [
        Selection(
            *specs[name],
            kernels(specs[name][0], selected),
            tuple(filters),
            load_all(specs[name][1], specs[name][0]) if tuned else (),
        )
        for name, selected in chosen.items()
    ]


def _with_readable_name(loaded: Spec) -> Spec:
    """Return ``loaded`` with its file name decoded as UTF-8, whatever the locale.

    Raises UserError if the file name has characters that cannot be printed.
    """
    try:
        name = os.fsencode(loaded.file_name).decode()
    except UnicodeDecodeError:
        name = "\n"
    if not name.isprintable():
        file = loaded.file_name.encode("unicode_escape").decode()
        raise UserError(
            "the name has characters that cannot be printed, but generated files contain it; rename the file",
            file,
        )
    return replace(loaded, file_name=name)


def select(family: Iterable[PointT], filters: Sequence[str]) -> tuple[PointT, ...]:
    """Return the kernels of ``family`` that match ``filters``, in the order of ``family``.

    Without filters, the result contains all kernels. A filter is ``axis=value``, ``operator=name``, or a glob pattern
    for the short name of a kernel, such as ``hd256_*_f16_*``. Filters on the same axis are alternatives: a kernel must
    match at least one of these filters. Filters on the operator are alternatives too, and so are glob patterns. A
    filter on an axis also matches every kernel without this axis. A cache writer, for example, matches every filter on
    the partition size.

    Raises UserError for an unknown axis or operator, and for filters that select no kernel.
    """
    every = tuple(family)
    groups: dict[str, list[Condition]] = {}
    for text in filters:
        subject, condition = _condition(text)
        if not any(condition(point) for point in every if subject in ("slug", "operator") or subject in point.axes):
            if subject == "operator":
                raise UserError(f"--filter {quoted(text)} selects nothing; write in a spec: {_operators_with(text)}")
            raise UserError(f"--filter {quoted(text)} selects none of {len(every)} variants; pav2gen list shows them")
        groups.setdefault(subject, []).append(condition)
    selected = tuple(point for point in every if all(any(one(point) for one in group) for group in groups.values()))
    if not selected:
        raise UserError("the filters together select nothing; pav2gen list shows the variants")
    return selected


def _condition(text: str) -> tuple[str, Condition]:
    """Parse a filter into its subject and a function that says whether a kernel matches the filter.

    The subject is the name of an axis, "operator", or "slug" for a pattern of short names.
    """
    axis, equals, value = text.partition("=")
    if not equals:
        return "slug", lambda point: fnmatchcase(point.slug, text)
    if axis == "operator":
        operator = read_operator(value)
        return axis, lambda point: point.operator == operator
    if axis not in AXES:
        raise UserError(f"--filter {quoted(text)} names no axis; {did_you_mean(axis, (*AXES, 'operator'))}")
    wanted = AXES[axis].aliases.get(value, value)
    return axis, lambda point: axis not in point.axes or spelled(point.axes[axis]) == wanted


def read_operator(text: str) -> str:
    """Return ``text`` if it is the name of an operator. Raises UserError if there is no operator of this name."""
    if text not in OPERATORS:
        raise UserError(f"there is no operator {quoted(text)}; {did_you_mean(text, OPERATORS)}")
    return text


def _operators_with(filter_text: str) -> str:
    """Return the line that a spec file needs so that a filter on an operator selects kernels.

    For the filter ``operator=extend``, the result is ``operators: [decode, extend]``.
    """
    operators = ", ".join(dict.fromkeys(("decode", filter_text.partition("=")[2])))
    return f"operators: [{operators}]"
