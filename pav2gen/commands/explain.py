"""Implements ``pav2gen explain``: finds the kernels with given axis values, or says why there are none.

A query gives values for some axes. A kernel serves a query if it has these values. If no kernel serves a query,
``explain`` finds the edits of a spec that would add such a kernel.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import SimpleNamespace
from typing import NamedTuple

from pav2gen.errors import UserError
from pav2gen.family.axes import AXES
from pav2gen.family.spec import Exclusion, Spec, extended, points, variants
from pav2gen.family.variant import OPERATORS, Point, expand
from pav2gen.reading.rule import AxisRule, Rule
from pav2gen.reading.rules import RULES, check
from pav2gen.reading.selection import read_operator
from pav2gen.runtime.key import KEYS, NAME_WORDS, NEVER_BUILT, name_allowed
from pav2gen.runtime.miss import distance, relative_difference
from pav2gen.wording import did_you_mean, flow_list, flow_map, one_of, quoted, spelled

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
    """Why a spec has no kernel that serves a query.

    The reason is in one of ``lacking``, ``exclusions`` and ``barred``. The other two are empty.

    lacking: the axes on which the spec lacks the query's value.
    exclusions: the exclusions of the spec that remove the kernels with the query's values.
    barred: the reason why the spec cannot build the query's operator, although it has all values of the query.
    """

    spec: Spec
    lacking: tuple[str, ...]
    exclusions: tuple[Exclusion, ...]
    barred: str = ""

    def sentence(self, query: Mapping[str, object]) -> str:
        """Return the message that says why the spec has no kernel for ``query``, with the path of the spec's file."""
        if self.lacking:
            axes = (f"{axis} {flow_list(self.spec.axes[axis])} lacks {spelled(query[axis])}" for axis in self.lacking)
            return f"{_file(self.spec)}: {', '.join(axes)}"
        if self.barred:
            return f"{_file(self.spec)}: {self.barred}"
        if len(self.exclusions) == 1:
            return f"{_file(self.spec)}: line {self.exclusions[0].line} excludes it ({self.exclusions[0].because})"
        lines = (str(exclusion.line) for exclusion in self.exclusions)
        return f"{_file(self.spec)}: the exclusions on lines {', '.join(lines)} cover it together"


@dataclass(frozen=True)
class AxisEdit:
    """An edit of a spec that the user can make: write the text ``line`` at the place ``where``.

    values: for each axis that the edit changes, all its values after the edit.
    operators: all operators of the spec after the edit. Empty if the edit does not change them.
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
    """Operators that a spec could also build: their names, the edit that adds them, and the command to run after it."""

    operators: tuple[str, ...]
    edit: AxisEdit
    command: str


@dataclass(frozen=True)
class Explanation:
    """The answer to a query: the kernels that serve it, or why there is none and how to add one.

    query: the axis values that the user asks for.
    operator: the operator that the user asks for.
    served: the kernels of ``operator`` with the query's values.
    others: the kernels of other operators with the query's values.
    missing: the operators of which no spec has a kernel with the query's values, and how to add them. None if there are
    no such operators, if no spec can build them, or if ``served`` is empty.
    refusals: the rules that forbid the query.
    obstacles: for each spec, why it has no kernel for the query. The spec that needs the smallest change is first.
    nearest: the kernel of ``operator`` that differs from the query on the fewest axes. None if the
    answer does not need it, or if no spec has kernels of ``operator``.
    edits: the edits of one spec that add a kernel for the query.
    command: the command that builds this spec after the edits. If there is a command but no edit, the user must first
    remove some of the spec's exclusions.

    If a rule forbids the query, or if no spec can be changed to serve it, ``edits`` and ``command`` are empty.
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
        """Return what the answer calls a kernel of ``operator``, such as ``extend kernel``.

        A decode kernel is just ``kernel``, unless only kernels of other operators serve the query.
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
        """Return advice about the query's modification, if specs were searched and none of them defines it.

        Without such a modification, return an empty text.
        """
        name, specs = self.query.get("modification"), [obstacle.spec for obstacle in self.obstacles]
        defined = sorted({each for spec in specs for each in spec.modifications})
        if not name or not specs or name in defined:
            return ""
        near = get_close_matches(str(name), defined, n=1)
        hint = f"did you mean {near[0]}? If not, " if near else ""
        place = f"under modifications in {_file(specs[0])} and add it to the features (docs/modifications.md)"
        works = f"define it {place}" if name_allowed(str(name)) else f"write {NAME_WORDS}"
        return f"no spec here defines the modification {quoted(name)}; {hint}{works}"


def explain(query: Mapping[str, object], specs: Sequence[Spec]) -> Explanation:
    """Find the kernels of ``specs`` that serve ``query``, or why there is none and the edits that would add one.

    query: maps some axes of ``AXES`` to values, as text or in the axis's type. The key ``operator`` is allowed too; its
    default is decode.

    Raises UserError for an unknown axis, and for a value of the wrong type.
    """
    asked = {axis: read_value(axis, value) for axis, value in query.items()}
    operator = str(asked.pop("operator", "decode"))
    own = {axis: value for axis, value in asked.items() if operator == "decode" or axis in KEYS[operator]._fields}
    built = [point for spec in specs for point in points(spec)]
    family = [point for point in built if point.operator == operator]
    fitting = tuple(point for point in built if not differing_axes(asked, point))
    others = tuple(point for point in fitting if point.operator != operator)
    start = Explanation(asked, operator, others=others)
    if served := tuple(point for point in fitting if point.operator == operator):
        return replace(start, served=served, missing=_missing(served, others, specs))
    for spec in specs:
        possible = OPERATORS[operator](variants(spec))
        if operator not in spec.operators and any(not differing_axes(asked, point) for point in possible):
            edit = _with_operators(spec, operator)
            if _would_serve(asked, operator, spec, (edit,)):
                return replace(start, edits=(edit,), command=_build(spec))
    refusals = tuple(_refusals(own, operator))
    obstacles = tuple(sorted((_obstacle(own, operator, spec) for spec in specs), key=lambda each: _effort(own, each)))
    nearest = min(family, key=lambda point: distance(own, SimpleNamespace(**point.axes)), default=None)
    start = replace(start, others=(), refusals=refusals, obstacles=obstacles, nearest=nearest)
    if refusals:
        return start
    for obstacle in obstacles:
        edits = tuple(_edits(own, obstacle))
        if obstacle.barred:
            continue
        if edits and operator not in obstacle.spec.operators:
            edits = (*edits, _with_operators(obstacle.spec, operator))
        if not edits or _would_serve(asked, operator, obstacle.spec, edits):
            return replace(start, edits=edits, command=_build(obstacle.spec))
    return start


def _missing(served: Sequence[Point], others: Sequence[Point], specs: Sequence[Spec]) -> Missing | None:
    """Find the operators of which no spec has kernels for the query, and how to add them to a spec.

    Returns None if there are no such operators, or if no spec can build them.

    served: the kernels of the query's operator that serve the query.
    others: the kernels of other operators that serve the query.
    """
    built = {point.operator for point in (*served, *others)}
    for spec in specs:
        if any(point.spec == spec.name for point in served):
            lacking = [each for each in OPERATORS if each not in built and not _bar(spec, each)]
            if lacking:
                return Missing(tuple(lacking), _with_operators(spec, *lacking), _build(spec))
    return None


def _bar(spec: Spec, operator: str) -> str:
    """Return why ``spec`` cannot also build kernels of ``operator``, or an empty text if it can."""
    return _violation(replace(spec, operators=(*spec.operators, operator)))


def _violation(spec: Spec) -> str:
    """Return the message of the first rule that ``spec`` breaks, or an empty text if it obeys every rule."""
    try:
        check(spec)
    except UserError as error:
        return error.message
    return ""


def _build(spec: Spec) -> str:
    """Return the shell command that builds ``spec``."""
    return f"pav2gen build {shlex.quote(_file(spec))}"


def read_query(words: Iterable[str]) -> dict[str, object]:
    """Convert arguments of the form ``axis=value`` to a dict from axes to values.

    Raises UserError for an argument of another form, and for an axis given twice.
    """
    query: dict[str, object] = {}
    for word in words:
        axis, equals, value = word.partition("=")
        if not equals:
            is_file = word.endswith((".yaml", ".yml"))
            hint = f"name a spec by --spec {shlex.quote(word)}" if is_file else "write it as head_size=128"
            raise UserError(f"{quoted(word)} is not axis=value; {hint}")
        if axis in query:
            raise UserError(f"{axis} is given twice; keep one")
        query[axis] = read_value(axis, value)
    return query


def read_value(axis: str, value: object) -> object:
    """Convert ``value`` to the type of ``axis``, the name of an axis or ``operator``.

    Raises UserError for an unknown axis or a value of another type.
    """
    if axis == "operator":
        return read_operator(str(value))
    if axis not in AXES:
        raise UserError(f"there is no axis {quoted(axis)}; {did_you_mean(axis, AXES)}")
    found = AXES[axis]
    return value if found.has_type(value) and found.kind is not str else found.parse(spelled(value))


def differing_axes(query: Mapping[str, object], point: Point) -> tuple[str, ...]:
    """Return the axes on which ``point`` has another value than ``query``.

    Axes that the operator of ``point`` lacks are ignored.
    """
    return tuple(axis for axis, value in query.items() if point.axes.get(axis, value) != value)


def _refusals(query: Mapping[str, object], operator: str) -> Iterator[Refusal]:
    """Yield each rule that the values in ``query`` break, whatever the values of all other axes are."""
    for rule in RULES:
        if isinstance(rule, AxisRule) and query.keys() >= set(rule.axes):
            sentence = rule.complaint(*(query[axis] for axis in rule.axes))
            if sentence:
                yield Refusal(rule, sentence)
    dense = next(rule for rule in RULES if rule.id == "extend-is-dense")
    for axis in NEVER_BUILT.get(operator, ()):
        if query.get(axis):
            yield Refusal(dense, f"{axis} cannot be {spelled(query[axis])} for {operator}")


def _obstacle(query: Mapping[str, object], operator: str, spec: Spec) -> Obstacle:
    """Return the reason why ``spec`` has no kernel of ``operator`` for ``query``."""
    lacking = tuple(axis for axis, value in query.items() if value not in spec.axes[axis])
    if lacking:
        return Obstacle(spec, lacking, ())
    if any(not differing_axes(query, variant) for variant in variants(spec)):
        return Obstacle(spec, (), (), _bar(spec, operator))
    points = [point for point in expand(spec.name, spec.axes) if not differing_axes(query, point)]
    alone = next(((entry,) for entry in spec.exclude if all(map(entry.covers, points))), None)
    return Obstacle(spec, (), alone or tuple(entry for entry in spec.exclude if any(map(entry.covers, points))))


def _effort(query: Mapping[str, object], obstacle: Obstacle) -> tuple[int, float]:
    """Return a sort key that orders obstacles by the size of the necessary change.

    The key is the number of axes that need another value in the spec, then the relative distance of the query's values
    from the spec's values on these axes.
    """
    axes = obstacle.spec.axes
    nearest = (min(relative_difference(query[axis], has) for has in axes[axis]) for axis in obstacle.lacking)
    return len(obstacle.lacking), sum(nearest)


def _with_operators(spec: Spec, *operators: str) -> AxisEdit:
    """Return the edit that adds ``operators`` to the operators in the file of ``spec``."""
    every = [each for each in OPERATORS if each in (*spec.operators, *operators)]
    line = f"operators: {flow_list(every)}"
    if "operators" not in spec.places:
        return AxisEdit({}, line, f"{_file(spec)}, at its end", operators=tuple(every))
    last = spec.where(f"operators[{len(spec.operators) - 1}]", "operators")
    return AxisEdit({}, line, _range(spec.where("operators"), last), operators=tuple(every))


def _edits(query: Mapping[str, object], obstacle: Obstacle) -> Iterator[AxisEdit]:
    """For each axis on which the obstacle's spec lacks the query's value, yield the edit that adds the value.

    If the section of an axis is missing in the spec's file, or is written in braces, one edit writes the whole section.
    """
    spec, whole = obstacle.spec, dict[str, dict[str, tuple[object, ...]]]()
    for axis in obstacle.lacking:
        values = extended(spec.axes[axis], query[axis])
        path = AXES[axis].path
        section = path.partition(".")[0]
        if section not in spec.places or _in_braces(spec, section):
            whole.setdefault(section, {})[axis] = values
            continue
        where, last = spec.where(path, section), spec.where(f"{path}[{len(spec.axes[axis]) - 1}]", path, section)
        under = "" if path in spec.places else section
        yield AxisEdit({axis: values}, f"{axis}: {flow_list(values)}", _range(where, last), under)
    for section, added in whole.items():
        fields = {key: _values(spec, key) for key in _keys(spec, section)}
        fields |= {axis: flow_list(values) for axis, values in added.items()}
        where = f"{_file(spec)}, at its end"
        if section in spec.places:
            ends = (place for path, place in spec.places.items() if path.startswith(f"{section}."))
            where = _range(spec.where(section), max(ends, key=_line))
        yield AxisEdit(added, f"{section}: {flow_map(fields.items())}", where)


def _keys(spec: Spec, section: str) -> list[str]:
    """Return the names of the axes that a section of the spec's file sets, in the order of the file."""
    return [path.removeprefix(f"{section}.") for path in spec.places if re.fullmatch(rf"{section}\.\w+", path)]


def _values(spec: Spec, key: str) -> str:
    """Return the values of the axis ``key`` in a spec as YAML: a list, or a single value."""
    values = spec.axes[key]
    return flow_list(values) if len(values) > 1 else spelled(values[0])


def _in_braces(spec: Spec, section: str) -> bool:
    """Whether the spec's file has a section in braces, such as ``axes: {head_size: 128}``.

    Such a section is recognised by a value on the same line as the section's name.
    """
    return any(spec.places[f"{section}.{key}"] == spec.places[section] for key in _keys(spec, section))


def _line(place: str) -> int:
    """Return the line number in ``place``, which has the form ``file:line``."""
    return int(place.rpartition(":")[2])


def _range(first: str, last: str) -> str:
    """Return the place of the lines from ``first`` to ``last``, as ``file:first-last`` or ``file:line``."""
    return first if _line(first) == _line(last) else f"{first}-{_line(last)}"


def _would_serve(query: Mapping[str, object], operator: str, spec: Spec, edits: Sequence[AxisEdit]) -> bool:
    """Whether ``spec``, after ``edits``, obeys every rule and has a kernel of ``operator`` for ``query``."""
    axes = dict(spec.axes)
    for edit in edits:
        axes.update(edit.values)
    operators = next((edit.operators for edit in edits if edit.operators), spec.operators)
    edited = replace(spec, axes=axes, operators=operators)
    if _violation(edited):
        return False
    return any(point.operator == operator and not differing_axes(query, point) for point in points(edited))


def _file(spec: Spec) -> str:
    """Return the path from which a spec was loaded, or only the file's name if the path is not known."""
    return spec.where("").rpartition(":")[0] or spec.file_name


def _pairs(values: Mapping[str, object]) -> str:
    """Return axes and their values as text, such as ``head_size=80 gqa_ratio=6``."""
    return " ".join(f"{axis}={spelled(value)}" for axis, value in values.items())


def _named(lines: Iterable[str]) -> Iterator[str]:
    """Yield the first ``MOST_NAMED`` of ``lines``, then a line that says how many more there are."""
    every = list(lines)
    yield from every[:MOST_NAMED]
    if len(every) > MOST_NAMED:
        yield f"  and {len(every) - MOST_NAMED} more"


def axis_lines(specs: Sequence[Spec]) -> Iterator[str]:
    """Yield a heading, then a line for the operator, then a line for each axis.

    The line of an axis has its meaning, its possible values, and its values in ``specs``.
    """
    yield "pav2gen explain AXIS=VALUE...  takes the axes below; an axis that is left out may have any value"
    width = max(map(len, AXES))
    operators = ", ".join(each for each in OPERATORS if any(each in spec.operators for spec in specs))
    about = f"What the kernel computes. Can be {one_of(OPERATORS)}; decode if left out."
    yield f"  {'operator':{width}}  {about} The specs have {operators}."
    for name, axis in AXES.items():
        values = {value for spec in specs for value in spec.axes[name]}
        numbers = sorted(value for value in values if isinstance(value, (int, float)))
        names = sorted(str(value) for value in values if isinstance(value, str))
        built = [*([None] if None in values else []), *numbers, *names]
        can_be = f" Can be {axis.works}." if axis.works else ""
        yield f"  {name:{width}}  {axis.about}{can_be} The specs have {', '.join(map(spelled, built))}."
