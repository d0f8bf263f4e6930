"""Classes for the rules that every spec file must satisfy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pav2gen.family.axes import AXES
from pav2gen.family.spec import Spec
from pav2gen.family.variant import Variant
from pav2gen.wording import flow_map

#: A function that returns the decode kernels of a spec. Rules call it only after their number was checked.
Expanded = Callable[[], tuple[Variant, ...]]


class Violation(NamedTuple):
    """A violation of a rule by a spec file.

    sentence: the error message.
    paths: dotted paths in the spec file, such as ``axes.head_size``, of values that may cause the violation. The error
    message gives the line of the first path that the spec file contains.
    """

    sentence: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """A rule that every spec file must satisfy.

    id: the name of the rule in error messages, which never changes.
    reason: a text that says why the rule exists.
    """

    id: str
    reason: str

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """Return the first violation of the rule in ``spec``, or None if ``spec`` satisfies the rule.

        expanded: a function without arguments that returns the spec's decode kernels.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class AxisRule(Rule):
    """A rule on the values of one axis (a kernel property such as the head size), or on combinations of several axes.

    axes: the names of the axes that the rule is about.
    complaint: a function that takes one value of each axis. The function returns None if the rule allows the values,
    and otherwise an error message that says what would work.
    """

    axes: tuple[str, ...]
    complaint: Callable[..., str | None]

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """Return the violation for the first axis value, or combination of axis values, in ``spec`` that the rule does
        not allow.

        The result is None if the rule allows all axis values in ``spec``.
        """
        if len(self.axes) == 1:
            points = [(value,) for value in spec.axes[self.axes[0]]]
        else:
            points = list(dict.fromkeys(tuple(getattr(v, axis) for axis in self.axes) for v in expanded()))
        for point in points:
            if sentence := self.complaint(*point):
                return Violation(sentence + self._advice(point), self._paths(spec, point[0]))
        return None

    def _advice(self, point: tuple[object, ...]) -> str:
        """Return the end of an error message, which suggests an exclusion of the axis values ``point``.

        The result is empty for a rule on one axis.
        """
        when = flow_map(zip(self.axes, point, strict=True))
        return f"; or exclude: - {{when: {when}, because: ...}}" if len(point) > 1 else ""

    def _paths(self, spec: Spec, value: object) -> tuple[str, ...]:
        """Return the field ``paths`` of a ``Violation`` for ``value``, a value of the rule's first axis."""
        path = AXES[self.axes[0]].path
        return f"{path}[{spec.axes[self.axes[0]].index(value)}]", path, "axes"


@dataclass(frozen=True)
class SpecRule(Rule):
    """A rule on a spec file as a whole.

    check: a function that returns the first violation of the rule in a spec, or None.
    """

    check: Callable[[Spec, Expanded], Violation | None]

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """Return the violation that ``check`` finds in ``spec``, or None if ``check`` finds no violation."""
        return self.check(spec, expanded)
