"""The types of rules. A rule has an id and a reason, and checks a spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pav2gen.family.axes import AXES
from pav2gen.family.spec import Spec
from pav2gen.family.variant import Variant
from pav2gen.wording import flow_map

#: A function that returns the variants of the spec. Its first call is after the rules that limit their number.
Expanded = Callable[[], tuple[Variant, ...]]


class Violation(NamedTuple):
    """A broken rule: the sentence for the message, and the paths of the value in the spec.

    The message gives the line of the first path that the file contains.
    """

    sentence: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """A rule. Messages name its ``id``, so the id never changes. ``reason``: why the rule exists, and its source."""

    id: str
    reason: str

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """The first violation of the rule in ``spec``, or None."""
        raise NotImplementedError


@dataclass(frozen=True)
class AxisRule(Rule):
    """A rule on the value of one axis, or on a combination of values of several axes.

    ``complaint`` takes a value of each of ``axes``, and returns None or a sentence that says what would work.
    """

    axes: tuple[str, ...]
    complaint: Callable[..., str | None]

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """The first value, or the first combination of values, that breaks the rule. None if all are good."""
        if len(self.axes) == 1:
            points = [(value,) for value in spec.axes[self.axes[0]]]
        else:
            points = list(dict.fromkeys(tuple(getattr(v, axis) for axis in self.axes) for v in expanded()))
        for point in points:
            if sentence := self.complaint(*point):
                return Violation(sentence + self._advice(point), self._paths(spec, point[0]))
        return None

    def _advice(self, point: tuple[object, ...]) -> str:
        """For a rule on several axes: the text of an entry of ``exclude`` that would remove ``point``."""
        when = flow_map(zip(self.axes, point, strict=True))
        return f"; or exclude: - {{when: {when}, because: ...}}" if len(point) > 1 else ""

    def _paths(self, spec: Spec, value: object) -> tuple[str, ...]:
        """The paths at which ``value`` of the first axis may be."""
        path = AXES[self.axes[0]].path
        return f"{path}[{spec.axes[self.axes[0]].index(value)}]", path, "axes"


@dataclass(frozen=True)
class SpecRule(Rule):
    """A rule on a spec as a whole."""

    check: Callable[[Spec, Expanded], Violation | None]

    def violation(self, spec: Spec, expanded: Expanded) -> Violation | None:
        """The violation that ``check`` finds, or None."""
        return self.check(spec, expanded)
