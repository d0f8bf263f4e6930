"""Writes the error message for a call that no kernel fits.

The message says how the call differs from the nearest kernel, and how to add a kernel for the call. The advice respects
the limits that ``key.LIMITS`` lists. Some rules, such as the limit on the number of kernels, need more information than
the dispatch table has. Only ``pav2gen build`` can check such rules.

This module does not import torch, because the generator runs without torch and also uses this module.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from .dispatch_row import Row
from .key import FEATURES, LIMITS, NEVER_BUILT, AnyKey, Key, in_order, order_of, own_key, refusals, yaml_text


class NoKernelError(LookupError):
    """No kernel in the dispatch table fits a call.

    The message names the properties of the call that no kernel has, and says how to add a kernel.
    """


def miss(key: AnyKey, rows: Iterable[Row], files: Mapping[str, str], operator: str = "decode") -> str:
    """Return the error message for a call with the kernel key ``key`` if no kernel of ``operator`` has this key.

    The message names the nearest key that has a kernel, the properties that differ from ``key``, and how to add a
    kernel.

    rows: the dispatch rows (kernels) of all operators of the package.
    files: the path of the YAML file of each spec, by the spec's name.
    """
    every = sorted(rows, key=lambda row: row.spec)
    built = {row.key: row.spec for row in reversed(every) if row.operator == operator}
    kernel = "kernel" if operator == "decode" else f"{operator} kernel"
    refused = refusals(key, operator)
    others = _elsewhere(key, every, operator)
    if others and not refused:
        return _lacks_operator(key, others, every, files, operator)
    if not built:
        remedy = f"; {_first(operator, every)}" if not refused else f". None can be generated: {' and '.join(refused)}"
        return f"no {kernel} for {key}: the package has none{remedy}"
    near = nearest(key, built)
    axes = [axis for axis in key._fields if getattr(near, axis) != getattr(key, axis)]
    alike = [other for other in built if other._replace(**{axis: getattr(key, axis) for axis in axes}) == key]
    reasons = "; ".join(f"{axis} {yaml_text(getattr(key, axis))} (built: {_values(axis, alike)})" for axis in axes)
    against = f"no {kernel} for {key}: the nearest kernel differs in {reasons}. Nearest: {near} of {built[near]}."
    against += _similar(key, every)
    if refused:
        return f"{against} None can be generated: {' and '.join(refused)}"
    spec = [row for row in every if row.spec == built[near]]
    return f"{against} {_remedy(key, axes, spec, files, operator)}"


def _similar(key: AnyKey, rows: Iterable[Row]) -> str:
    """Return the text "Did you mean the modification NAME?", where NAME is the most similar modification in ``rows``.

    The text is empty if ``key`` has no modification, if ``rows`` contains the modification, or if no name is similar.
    """
    own = getattr(key, "modification", None)
    defined = {str(row.key.modification) for row in rows if getattr(row.key, "modification", None)}
    near = difflib.get_close_matches(own, sorted(defined), 1) if own and own not in defined else []
    return f" Did you mean the modification {near[0]}?" if near else ""


def _first(operator: str, rows: Sequence[Row]) -> str:
    """Return advice on how to build the package's first kernel of ``operator``.

    rows: the dispatch rows of all kernels in the package.
    """
    if operator == "decode" and not rows:
        return "pav2gen build specs/NAME.yaml makes some"
    operators = ", ".join(dict.fromkeys(("decode", operator)))
    return f"write operators: [{operators}] in a spec, then: pav2gen build specs/NAME.yaml"


def _elsewhere(key: AnyKey, rows: Iterable[Row], operator: str) -> list[Row]:
    """Return the dispatch rows of other attention operators whose kernels fit the same attention layers as ``key``."""
    others = [row for row in rows if row.operator != operator and isinstance(row.key, Key)]
    return [row for row in others if own_key(row.key, operator) == key]


def _lacks_operator(
    key: AnyKey, others: Sequence[Row], rows: Sequence[Row], files: Mapping[str, str], operator: str
) -> str:
    """Return the error message for a key that has kernels of other operators, but no kernel of ``operator``.

    others: the dispatch rows (kernels) of other operators that fit ``key``.
    rows: all dispatch rows of the package.
    files: the path of the YAML file of each spec, by the spec's name.
    """
    barred = {row.spec for row in rows if any(_has(row.key, axis) for axis in NEVER_BUILT.get(operator, ()))}
    row = next((row for row in others if row.spec not in barred), others[0])
    file = _file(row.spec, files)
    against = f"no {operator} kernel for {key}: {file} builds this key for {row.operator}"
    if row.spec not in barred:
        return f"{against}; add {operator} to its operators, then: pav2gen build {file}"
    features = " and ".join(axis for axis in NEVER_BUILT[operator] if any(_has(each.key, axis) for each in rows))
    remedy = f"To add it: {_own_spec(key, operator)}"
    return f"{against}, and also {features} kernels, which {operator} lacks. {remedy}"


def _remedy(key: AnyKey, axes: Sequence[str], rows: Sequence[Row], files: Mapping[str, str], operator: str) -> str:
    """Return advice on how to add ``key`` to a spec, the YAML file from which the nearest kernel was generated.

    axes: the names of the fields in which ``key`` differs from the key of the nearest kernel.
    rows: the dispatch rows of all kernels that were generated from the spec.
    files: the path of the YAML file of each spec, by the spec's name.
    """
    file, has = _file(rows[0].spec, files), [row.key for row in rows if row.operator == operator]
    lacking = [axis for axis in axes if all(getattr(other, axis) != getattr(key, axis) for other in has)]
    where = f"leaves out their combination: pav2gen explain {key} says where"
    if not lacking:
        return f"{file} has these values and {where}"
    clashes = _clashes(key, lacking, rows)
    if _barred(key, lacking, rows, clashes):
        return f"To add it: {_own_spec(key, operator)}"
    when = [", ".join(f"{axis}: {yaml_text(value)}" for axis, value in clash.items()) for clash in clashes]
    entries = ", ".join(f"{{when: {{{pair}}}, because: no kernel can have both}}" for pair in when)
    lines = _lines(lacking, [*has, key]) + f" and under exclude, add {entries}" * bool(entries)
    kept = [axis for axis in key._fields if axis not in lacking]
    combined = any(all(getattr(other, axis) == getattr(key, axis) for axis in kept) for other in has)
    note = "" if combined else f"; it has the other values and {where}"
    return f"To add it: in {file} write {lines}, then: pav2gen build {file}{note}"


def _clashes(key: AnyKey, lacking: Collection[str], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the pairs of values that a spec (a YAML file) must exclude when a user adds the values of ``key``.

    A pair maps two fields of a kernel key to values that no kernel can have together.

    lacking: the names of the fields whose values the user adds.
    rows: the dispatch rows of all kernels that were generated from the spec.
    """
    values = {axis: {getattr(row.key, axis) for row in rows if hasattr(row.key, axis)} for axis in key._fields}
    for axis in lacking:
        values[axis].add(getattr(key, axis))
    values |= {axis: set() for limit in LIMITS for axis in limit.axes if axis not in values}
    values["partition_size"] = {row.partition_size for row in rows if row.operator == "decode"}
    clashes: list[dict[str, Any]] = []
    for axes, holds, _ in LIMITS:
        for point in itertools.product(*(sorted(values[axis], key=in_order) for axis in axes)):
            pair = dict(zip(axes, point, strict=True))
            added = any(value == getattr(key, axis) for axis, value in pair.items() if axis in lacking)
            if len(axes) == 2 and added and not holds(*point):
                clashes.append(pair)
    return clashes


def _barred(
    key: AnyKey, lacking: Collection[str], rows: Sequence[Row], clashes: Sequence[Mapping[str, object]]
) -> bool:
    """Whether ``key`` cannot be added to an existing spec (a YAML file), even if the spec excludes ``clashes``.

    One possible reason is that the spec also builds an operator that does not support a feature of ``key``. Another
    possible reason is that the page size of ``key`` does not fit the partition sizes of the spec.

    lacking: the names of the fields whose values in ``key`` are not in the spec.
    rows: the dispatch rows of all kernels that were generated from the spec.
    clashes: pairs of values that no kernel can have together, as ``_clashes`` returns.
    """
    never = {axis for row in rows for axis in NEVER_BUILT.get(row.operator, ())}
    lost = {clash.get("partition_size") for clash in clashes if clash.get("block_size") == key.block_size} - {None}
    left = {row.partition_size for row in rows if row.operator == "decode"} - lost
    return (
        any(axis in lacking and _has(key, axis) for axis in never)
        or bool(lost and not left)
        or any(row.fixed_partition in lost for row in rows)
    )


def _own_spec(key: AnyKey, operator: str) -> str:
    """Return advice on how to write a new spec (a YAML file) that builds a kernel with ``key``."""
    axes = ", ".join(f"{axis}: {yaml_text(getattr(key, axis))}" for axis in key._fields if axis not in FEATURES)
    features = ", ".join(f"{axis}: {yaml_text(getattr(key, axis))}" for axis in FEATURES if _has(key, axis))
    lines = [
        f"axes: {{{axes}}}",
        f"features: {{{features}}}" * bool(features) + _defined(key),
        f"operators: [{operator}]",
    ]
    return f"write another spec, with {', '.join(filter(None, lines))}, then: pav2gen build specs/NAME.yaml"


def _lines(axes: Sequence[str], keys: Sequence[AnyKey]) -> str:
    """Return the lines of a spec (a YAML file) that list, for each field in ``axes``, all values in ``keys``.

    keys: the keys of the existing kernels, followed by the key that the user adds.
    """
    lines = ", ".join(f"{axis}: [{_values(axis, keys)}]" for axis in axes if axis not in FEATURES)
    features = ", ".join(f"{axis}: [{_values(axis, keys)}]" for axis in axes if axis in FEATURES)
    defined = _defined(keys[-1]) if "modification" in axes else ""
    return " and ".join(filter(None, (lines, f"features: {{{features}}}{defined}" * bool(features))))


def _defined(key: AnyKey) -> str:
    """Return a note that the spec must define the modification of ``key``, or an empty string if there is none."""
    own = getattr(key, "modification", None)
    return f" (define {own} under modifications)" if own else ""


def _has(key: AnyKey, feature: str) -> bool:
    """Whether a kernel with ``key`` has a feature, such as a softcap."""
    return bool(getattr(key, feature, None))


def _file(spec: str, files: Mapping[str, str]) -> str:
    """Return the path of the YAML file of the spec with the name ``spec``."""
    return files.get(spec, f"specs/{spec}.yaml")


def _values(axis: str, keys: Iterable[AnyKey]) -> str:
    """Return the values of the field ``axis`` in all ``keys``, sorted, as YAML text."""
    return ", ".join(map(yaml_text, sorted({getattr(key, axis) for key in keys}, key=in_order)))


def nearest(key: AnyKey, keys: Iterable[Any]) -> Any:
    """Return the key in ``keys`` that differs from ``key`` in the fewest fields.

    If several keys differ in equally few fields, the smallest sum of relative differences (see ``distance``) decides.
    If the sums are also equal, the function returns the first of these keys in sorted order.
    """
    return min(keys, key=lambda other: (*distance(key._asdict(), other), order_of(other)))


def distance(asked: Mapping[str, object], candidate: object) -> tuple[int, float]:
    """Return the number of fields in which two keys differ, and the sum of the relative differences of their numbers.

    asked: the fields of one key, as a mapping from name to value.
    candidate: the other key, an object with the same names as attributes.
    """
    pairs = [(value, getattr(candidate, axis)) for axis, value in asked.items()]
    return sum(a != b for a, b in pairs), sum(relative_difference(a, b) for a, b in pairs)


def relative_difference(a: object, b: object) -> float:
    """Return the absolute difference of two numbers, divided by the larger absolute value.

    The result is 0 if ``a`` or ``b`` is not a number, or if both are 0.
    """
    numbers = [x for x in (a, b) if isinstance(x, (int, float)) and not isinstance(x, bool)]
    return abs(numbers[0] - numbers[1]) / max(map(abs, numbers)) if len(numbers) == 2 and any(numbers) else 0.0
