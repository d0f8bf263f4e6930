"""Implements ``pav2gen explain``: finds the kernels with given axis values, or says why no kernel has these values.

An axis is a property that tells kernels apart, such as the head size. A query gives values for some axes. A kernel
serves the query if the kernel has these values. If no kernel does, ``explain`` finds the edits of a spec that would add
one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

from pav2gen.commands.explanation import AxisEdit, Explanation, Missing, Obstacle, Refusal, differing_axes, file_of
from pav2gen.errors import UserError
from pav2gen.family.axes import AXES
from pav2gen.family.spec import Spec, extended, points, variants
from pav2gen.family.variant import OPERATORS, Point, expand
from pav2gen.reading.rule import AxisRule
from pav2gen.reading.rules import RULES, check
from pav2gen.reading.selection import read_operator
from pav2gen.runtime.choice.key import KEYS, NEVER_BUILT
from pav2gen.runtime.choice.miss import distance, relative_difference
from pav2gen.wording import did_you_mean, flow_list, flow_map, one_of, quoted, spelled


def explain(query: Mapping[str, object], specs: Sequence[Spec]) -> Explanation:
    """Find the kernels of ``specs`` that serve ``query``. If there is none, find the reasons, and the edits that would
    add one.

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
    """Find the operators without a kernel for the query, and the edit that adds these operators to a spec.

    Returns None if every operator has a kernel, or if no spec can build the missing kernels.

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
    """Return the reason why ``spec`` cannot also build kernels of ``operator``. The text is empty if ``spec`` can build
    them.
    """
    return _violation(replace(spec, operators=(*spec.operators, operator)))


def _violation(spec: Spec) -> str:
    """Return the message of the first rule that ``spec`` breaks, or an empty text if ``spec`` breaks none."""
    try:
        check(spec)
    except UserError as error:
        return error.message
    return ""


def _build(spec: Spec) -> str:
    """Return the shell command that builds ``spec``."""
    return f"pav2gen build {shlex.quote(file_of(spec))}"


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


def _refusals(query: Mapping[str, object], operator: str) -> Iterator[Refusal]:
    """Yield each rule that ``query`` breaks, whatever the values of the axes that are not in ``query``."""
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
    """Return a sort key that orders obstacles, that is, the reasons why specs have no kernel for the query. Small edits
    come first.

    The first part of the key is the number of axes on which the spec lacks the query's value. The second part is the
    sum of the relative distances between the query's value and the nearest value of the spec on these axes.
    """
    axes = obstacle.spec.axes
    nearest = (min(relative_difference(query[axis], has) for has in axes[axis]) for axis in obstacle.lacking)
    return len(obstacle.lacking), sum(nearest)


def _with_operators(spec: Spec, *operators: str) -> AxisEdit:
    """Return the edit that adds ``operators`` to the operators in the file of ``spec``."""
    every = [each for each in OPERATORS if each in (*spec.operators, *operators)]
    line = f"operators: {flow_list(every)}"
    if "operators" not in spec.places:
        return AxisEdit({}, line, f"{file_of(spec)}, at its end", operators=tuple(every))
    last = spec.where(f"operators[{len(spec.operators) - 1}]", "operators")
    return AxisEdit({}, line, _range(spec.where("operators"), last), operators=tuple(every))


def _edits(query: Mapping[str, object], obstacle: Obstacle) -> Iterator[AxisEdit]:
    """Yield the edits that add the query's values to the spec of ``obstacle``, one for each axis without the query's
    value.

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
        where = f"{file_of(spec)}, at its end"
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


def axis_lines(specs: Sequence[Spec]) -> Iterator[str]:
    """Yield a heading, then a line for the operator, then a line for each axis.

    The line of an axis states what the axis means, which values are possible, and which values ``specs`` have.
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
