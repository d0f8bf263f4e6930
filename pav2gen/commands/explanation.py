"""The answer of ``pav2gen explain``, and the text of the answer.

The module ``explain`` finds the parts of the answer: kernels, reasons why kernels are missing, and edits of a spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from pav2gen.family.spec import Exclusion, Spec
from pav2gen.family.variant import OPERATORS, Point
from pav2gen.reading.rule import Rule
from pav2gen.runtime.choice.key import NAME_WORDS, name_allowed
from pav2gen.wording import flow_list, quoted, spelled

#: Messages name at most this many kernels or specs.
MOST_NAMED = 8


@dataclass(frozen=True)
class Refusal:
    """A rule that forbids every kernel with the query's values.

    sentence: the message that says which values the rule forbids.
    """

    rule: Rule
    sentence: str


@dataclass(frozen=True)
class Obstacle:
    """The reason why a spec has no kernel that serves a query.

    Exactly one of ``lacking``, ``exclusions`` and ``barred`` is not empty.

    lacking: the axes on which the spec lacks the query's value.
    exclusions: the entries under ``exclude`` in the spec that remove the kernels with the query's values.
    barred: the reason why the spec cannot build the query's operator, although the spec has all values of the query.
    """

    spec: Spec
    lacking: tuple[str, ...]
    exclusions: tuple[Exclusion, ...]
    barred: str = ""

    def sentence(self, query: Mapping[str, object]) -> str:
        """Return the message that says why the spec has no kernel for ``query``, with the path of the spec's file."""
        if self.lacking:
            axes = (f"{axis} {flow_list(self.spec.axes[axis])} lacks {spelled(query[axis])}" for axis in self.lacking)
            return f"{file_of(self.spec)}: {', '.join(axes)}"
        if self.barred:
            return f"{file_of(self.spec)}: {self.barred}"
        if len(self.exclusions) == 1:
            return f"{file_of(self.spec)}: line {self.exclusions[0].line} excludes it ({self.exclusions[0].because})"
        lines = (str(exclusion.line) for exclusion in self.exclusions)
        return f"{file_of(self.spec)}: the exclusions on lines {', '.join(lines)} cover it together"


@dataclass(frozen=True)
class AxisEdit:
    """An edit of a spec that the user can make: write the text ``line`` at the place ``where``.

    values: maps each axis that the edit changes to all values of the axis after the edit.
    operators: all operators of the spec after the edit, or empty if the edit does not change the operators.
    where: ``file:line`` or ``file:first-last``, with line numbers before the edit; or ``file, at its end``.
    under: the section to which ``line`` is added. ``under`` is empty if ``line`` replaces the lines at ``where``, or is
    added at the end of the file.
    """

    values: Mapping[str, tuple[object, ...]]
    line: str
    where: str
    under: str = ""
    operators: tuple[str, ...] = ()


class Missing(NamedTuple):
    """Operators that a spec could also build, the edit that adds these operators, and the command to run after the
    edit.
    """

    operators: tuple[str, ...]
    edit: AxisEdit
    command: str


@dataclass(frozen=True)
class Explanation:
    """The answer to a query: the kernels with the query's values, or the reasons why no kernel has them.

    query: the axis values that the user asks for.
    operator: the operator that the user asks for.
    served: the kernels of ``operator`` with the query's values.
    others: the kernels of other operators with the query's values.
    missing: the operators without a kernel for the query, with the edit that adds them. None if every operator has a
    kernel, if no spec can build the missing kernels, or if ``served`` is empty.
    refusals: the rules that forbid the query.
    obstacles: the reason why each spec has no kernel for the query. The spec that needs the smallest edit comes first.
    nearest: the kernel of ``operator`` that differs from the query on the fewest axes. None if the answer does not name
    this kernel, or if no spec has kernels of ``operator``.
    edits: the edits of one spec that add a kernel for the query.
    command: the command that builds the spec after the edits. If ``edits`` is empty and ``command`` is not, the user
    must first remove entries under ``exclude`` in the spec.

    If a rule forbids the query, or no edit of a spec can add a kernel for the query, ``edits`` and ``command`` are
    empty.
    """

    query: Mapping[str, object]
    operator: str = "decode"
    served: tuple[Point, ...] = ()
    others: tuple[Point, ...] = ()
    missing: Missing | None = None
    refusals: tuple[Refusal, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    nearest: Point | None = None
    edits: tuple[AxisEdit, ...] = ()
    command: str = ""

    def lines(self) -> tuple[str, ...]:
        """Return the answer as the lines of text that ``pav2gen explain`` prints."""
        asked = _pairs(self.query) or "any key"
        if self.served:
            served = (f"  {variant.spec}  {variant.slug}" for variant in self.served)
            several = len(self.served) > 1
            kernels = f"{len(self.served)} {self._kernel()}{'s serve' if several else ' serves'}"
            return f"{asked}: {kernels} it", *_named(served), *self._beside()
        return f"{asked}: no {self._kernel()} serves it", *self._beside(), *self._against(), *self._remedy()

    def _kernel(self) -> str:
        """Return the answer's words for a kernel of ``operator``, such as ``extend kernel``.

        For a decode kernel, the word is ``kernel``, unless only kernels of other operators serve the query.
        """
        plain = self.operator == "decode" and (self.served or not self.others)
        return "kernel" if plain else f"{self.operator} kernel"

    def _beside(self) -> Iterator[str]:
        for operator in OPERATORS:
            found = [f"  {point.spec}  {point.slug}" for point in self.others if point.operator == operator]
            if found:
                yield f"for {operator}:"
                yield from _named(found)
        if self.missing:
            operators, edit, command = self.missing
            yield f"for {' and '.join(operators)}: no kernel; to add some, write"
            yield f"  {edit.where}: {edit.line}"
            yield f"and run  {command}"

    def _against(self) -> Iterator[str]:
        for refusal in self.refusals:
            yield f"  {refusal.sentence} (rule {refusal.rule.id}: {refusal.rule.reason})"
        yield from _named(f"  {obstacle.sentence(self.query)}" for obstacle in self.obstacles)
        if self.nearest:
            differing = {axis: self.nearest.axes[axis] for axis in differing_axes(self.query, self.nearest)}
            note = f", which has {_pairs(differing)}" if differing else ""
            yield f"nearest: {self.nearest.spec}  {self.nearest.slug}{note}"

    def _remedy(self) -> Iterator[str]:
        if self.edits:
            yield "to add it, write"
            for edit in self.edits:
                yield f"  {edit.where}: {f'under {edit.under}, add  ' if edit.under else ''}{edit.line}"
            yield f"and run  {self.command}"
        elif self.command:
            yield f"to add it, exclude less and run  {self.command}"
        elif undefined := self._undefined():
            yield undefined
        elif self.obstacles and not self.refusals:
            yield "no spec here can be extended to serve it; write one for its model: pav2gen init --from config.json"

    def _undefined(self) -> str:
        """Return advice if the query names a modification that no spec defines. Otherwise, return an empty text.

        A modification is a change of scores or masks that a spec states as an expression.
        """
        name, specs = self.query.get("modification"), [obstacle.spec for obstacle in self.obstacles]
        defined = sorted({each for spec in specs for each in spec.modifications})
        if not name or not specs or name in defined:
            return ""
        near = get_close_matches(str(name), defined, n=1)
        hint = f"did you mean {near[0]}? If not, " if near else ""
        place = f"under modifications in {file_of(specs[0])} and add it to the features (docs/modifications.md)"
        works = f"define it {place}" if name_allowed(str(name)) else f"write {NAME_WORDS}"
        return f"no spec here defines the modification {quoted(name)}; {hint}{works}"


def differing_axes(query: Mapping[str, object], point: Point) -> tuple[str, ...]:
    """Return the axes on which the kernel ``point`` has another value than ``query``.

    Axes that ``point`` lacks are ignored.
    """
    return tuple(axis for axis, value in query.items() if point.axes.get(axis, value) != value)


def file_of(spec: Spec) -> str:
    """Return the path from which a spec was loaded, or only the file's name if the path is not known."""
    return spec.where("").rpartition(":")[0] or spec.file_name


def _pairs(values: Mapping[str, object]) -> str:
    """Return the axes and values in ``values`` as text, such as ``head_size=80 gqa_ratio=6``."""
    return " ".join(f"{axis}={spelled(value)}" for axis, value in values.items())


def _named(lines: Iterable[str]) -> Iterator[str]:
    """Yield the first ``MOST_NAMED`` of ``lines``, then a line that says how many more there are."""
    every = list(lines)
    yield from every[:MOST_NAMED]
    if len(every) > MOST_NAMED:
        yield f"  and {len(every) - MOST_NAMED} more"
