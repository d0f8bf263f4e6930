"""The classes of the rules that every spec must satisfy. A rule has an id and a reason, and checks a spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pav2gen.family.axes import AXES
from pav2gen.family.spec import Spec
from pav2gen.family.variant import Variant
from pav2gen.wording import flow_map

#: A function that returns the decode kernels of a spec. Rules that limit the number of kernels are checked before the
#: first call of this function.
Expanded = Callable[[], tuple[Variant, ...]]


class Violation(NamedTuple):
    """How a spec breaks a rule. ``sentence`` is the error message. ``paths`` are the dotted paths, such as
    ``axes.head_size``, at which the wrong value may be in the spec file.

    The message is shown with the line of the first path that the spec file contains.
    """

    sentence: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """One rule that every spec must satisfy. ``id`` is the rule's name in error messages and never changes. ``reason``
    says why the rule exists.
    """

    id: str
    reason: str

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """The first violation of the rule in ``spec``, or None if ``spec`` satisfies the rule. ``expanded`` is a
        function that returns the spec's decode kernels.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class AxisRule(Rule):
    """A rule on the values of one axis, or on combinations of values of several axes.

    ``axes`` has the names of these axes. ``complaint`` is a function that takes one value of each axis. It returns None
    if the rule allows the values, else an error message that says what would work.
    """

    axes: tuple[str, ...]
    complaint: Callable[..., str | None]

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """The violation by the first value, or first combination of values, that the rule does not allow. None if the
        rule allows all values of ``spec``.
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
        """The end of the error message for a rule on several axes: the entry of ``exclude`` that would leave out the
        values ``point``. Empty for a rule on one axis.
        """
        when = flow_map(zip(self.axes, point, strict=True))
        return f"; or exclude: - {{when: {when}, because: ...}}" if len(point) > 1 else ""

    def _paths(self, spec: Spec, value: object) -> tuple[str, ...]:
        """The dotted paths at which ``value``, a value of the first axis, may be in the spec file. The most exact path
        comes first.
        """
        path = AXES[self.axes[0]].path
        return f"{path}[{spec.axes[self.axes[0]].index(value)}]", path, "axes"


@dataclass(frozen=True)
class SpecRule(Rule):
    """A rule on a spec as a whole. The function ``check`` tests whether the spec satisfies it."""

    check: Callable[[Spec, Expanded], Violation | None]

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """The violation that ``check`` finds in ``spec``, or None if it finds none."""
        return self.check(spec, expanded)
