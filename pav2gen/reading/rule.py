"""The classes of rules. A rule has an id and a reason, and checks a spec."""

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
    """A spec breaks a rule. ``sentence`` is the error message. ``paths`` are places in the spec file where the wrong
    value may be.

    The message is shown with the line of the first path that the spec file contains.
    """

    sentence: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """One rule. ``id`` is stated in messages and never changes. ``reason`` says why the rule exists."""

    id: str
    reason: str

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """The first violation of the rule in ``spec``, or None. ``expanded`` returns the spec's decode kernels."""
        raise NotImplementedError


@dataclass(frozen=True)
class AxisRule(Rule):
    """A rule on the values of one axis, or on combinations of values of several axes.

    ``complaint`` takes one value of each of ``axes``. The function returns None if the values are allowed, else an
    error message that says what would work.
    """

    axes: tuple[str, ...]
    complaint: Callable[..., str | None]

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """The violation by the first value, or first combination of values, that the rule does not allow. None if all
        are allowed.
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
        """The end of the message for a rule on several axes: the entry of ``exclude`` that would leave out the values
        ``point``.
        """
        when = flow_map(zip(self.axes, point, strict=True))
        return f"; or exclude: - {{when: {when}, because: ...}}" if len(point) > 1 else ""

    def _paths(self, spec: Spec, value: object) -> tuple[str, ...]:
        """The places in the spec file where ``value`` of the first axis may be."""
        path = AXES[self.axes[0]].path
        return f"{path}[{spec.axes[self.axes[0]].index(value)}]", path, "axes"


@dataclass(frozen=True)
class SpecRule(Rule):
    """A rule on a spec as a whole, which the function ``check`` tests."""

    check: Callable[[Spec, Expanded], Violation | None]

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """The violation that ``check`` finds, or None."""
        return self.check(spec, expanded)
