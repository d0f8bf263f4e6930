"""The JSON Schema of spec files, with which an editor completes and checks a spec file.

The schema checks types, names and ranges. Only ``pav2gen build`` checks rules that compare several values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pav2gen.family.axes import AXES, Axis
from pav2gen.family.modifications.parse import INDEX, LONGEST
from pav2gen.family.modifications.tree import MOST_HEADS
from pav2gen.family.spec import LARGEST_INT32
from pav2gen.family.target import FIGURES, TARGETS, Figure
from pav2gen.family.variant import OPERATORS
from pav2gen.plan.cuda_plan import CHOICES
from pav2gen.reading.modification_section import MOST_TENSORS
from pav2gen.reading.spec_file import (
    BACKENDS,
    DEFAULTS,
    KEYS,
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_RANKS,
    MOST_VARIANTS,
    MOST_WORKSPACE_MIB,
    SCHEMA,
)
from pav2gen.runtime.choice.dispatch_row import HOST_LENGTHS
from pav2gen.runtime.choice.key import LONGEST_NAME as LONGEST_MODIFICATION
from pav2gen.runtime.choice.key import NAME_FORM

DIALECT = "https://json-schema.org/draft/2020-12/schema"

JsonSchema = dict[str, Any]


def spec_schema() -> JsonSchema:
    """Return the JSON Schema of a spec file, as a dict for ``json.dumps``."""
    return {
        "$schema": DIALECT,
        "title": "pav2gen spec",
        "description": "A family of paged-attention kernels.",
        **_mapping(""),
    }


def _mapping(section: str) -> JsonSchema:
    """Return the JSON Schema of a section of a spec file.

    The section is a mapping with the keys that ``KEYS`` lists for the section.
    """
    required, optional = KEYS[section]
    properties = {key: _property(f"{section}.{key}".lstrip(".")) for key in (*required, *optional)}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _property(path: str) -> JsonSchema:
    """Return the JSON Schema of the value at the dotted path ``path`` in a spec file, such as ``model.num_heads``."""
    if path in KEYS:
        return {"description": SECTIONS[path], **_mapping(path)}
    axis = AXES.get(path.rpartition(".")[2])
    schema = _axis(axis) if axis is not None and axis.path == path else dict(FIELDS[path])
    default = DEFAULTS.get(path)
    if isinstance(default, tuple):
        schema["default"] = list(default)
    elif default is not None:
        schema["default"] = default
    return schema


def _axis(axis: Axis) -> JsonSchema:
    """Return the JSON Schema of the values of ``axis`` in a spec file: one value, or a list of distinct values."""
    works = f" Values: {axis.works}." if axis.works else ""
    return {"description": axis.about + works, **_one_or_many(_value(axis))}


def _value(axis: Axis) -> JsonSchema:
    names = {int: "integer", float: "number", bool: "boolean", str: "string"}
    kind: object = [names[axis.kind], "null"] if axis.nullable else names[axis.kind]
    schema: JsonSchema = {"type": kind}
    if isinstance(axis.allowed, range):
        schema |= {"minimum": axis.allowed[0], "maximum": axis.allowed[-1]}
    elif axis.allowed:
        schema["enum"] = [*axis.allowed, *axis.aliases, *([None] if axis.nullable else [])]
    return schema


def _one_or_many(value: JsonSchema) -> JsonSchema:
    """Return the JSON Schema of one value, or of a list of one or more distinct values.

    ``value`` is the JSON Schema of one value.
    """
    return {"anyOf": [value, {"type": "array", "items": value, "minItems": 1, "uniqueItems": True}]}


def _whole(low: int, high: int) -> JsonSchema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _figure(figure: Figure) -> JsonSchema:
    if figure.choices:
        return {"enum": list(figure.choices)}
    return {"type": "integer" if figure.whole else "number", "minimum": figure.low, "maximum": figure.high}


def _target() -> JsonSchema:
    """Return the JSON Schema of the key ``target`` in a spec file.

    The value of ``target`` is the name of a GPU, or a mapping that changes hardware figures of a ``base`` GPU.
    """
    name: JsonSchema = {"enum": list(TARGETS)}
    figures = {figure: _figure(FIGURES[figure]) for figure in FIGURES}
    changed = {
        "type": "object",
        "properties": {"base": name, **figures},
        "required": ["base"],
        "additionalProperties": False,
    }
    return {"anyOf": [name, changed]}


def _exclusions() -> JsonSchema:
    """Return the JSON Schema of the key ``exclude`` in a spec file: one exclusion, or a list of exclusions.

    An exclusion gives the axis values of kernels that are not built.
    """
    when = {axis.name: _one_or_many(_value(axis)) for axis in AXES.values()}
    exclusion = {
        "type": "object",
        "properties": {
            "when": {"type": "object", "properties": when, "minProperties": 1, "additionalProperties": False},
            "because": {"type": "string", "maxLength": LONGEST_TEXT},
        },
        "required": ["when", "because"],
        "additionalProperties": False,
    }
    return {"anyOf": [exclusion, {"type": "array", "items": exclusion}]}


def _modifications() -> JsonSchema:
    """Return the JSON Schema of the key ``modifications`` in a spec file.

    The value of ``modifications`` maps the name of each modification of scores or masks to its definition.
    """
    expression: JsonSchema = {"type": "string", "maxLength": LONGEST}
    axes: JsonSchema = {"type": "array", "items": {"enum": list(INDEX)}, "minItems": 1, "maxItems": 1}
    tensors = {"type": "object", "additionalProperties": axes, "minProperties": 1, "maxProperties": MOST_TENSORS}
    one = {
        "type": "object",
        "properties": {"score": expression, "mask": expression, "tensors": tensors},
        "anyOf": [{"required": ["score"]}, {"required": ["mask"]}],
        "additionalProperties": False,
    }
    name = {"pattern": f"^{NAME_FORM.pattern}$", "maxLength": LONGEST_MODIFICATION}
    return {"type": "object", "propertyNames": name, "additionalProperties": one}


#: Section of a spec -> its description in the JSON Schema.
SECTIONS: Mapping[str, str] = {
    "model": "The sizes of the model that the kernels serve.",
    "axes": "The values of each axis; the family is their product.",
    "features": "What the attention has beyond softmax(scale * q K^T) V.",
    "cuda": "The layout of CUDA decode kernels, where the plan's own is not wanted. Extend kernels keep the plan's.",
    "dispatch": "How a call is routed among the kernels.",
    "limits": "Bounds of the family and of a call.",
}

#: Dotted path of a key in a spec -> the schema of the key's value. Sections and axes are not in this table.
FIELDS: Mapping[str, JsonSchema] = {
    "schema": {"description": "The version of this form.", "const": SCHEMA},
    "name": {
        "description": "The name of the family: its folder, and a part of every symbol.",
        "type": "string",
        "pattern": f"^{NAME_FORM.pattern}$",
        "maxLength": LONGEST_NAME,
    },
    "about": {"description": "One line of description.", "type": "string", "maxLength": LONGEST_TEXT},
    "target": {"description": "The card that plans are made for.", **_target()},
    "modifications": {
        "description": "Modifications of the score or the mask, by name; features.modification says which are built.",
        **_modifications(),
    },
    "exclude": {"description": "Combinations that are not built, each with its reason.", **_exclusions()},
    "operators": {
        "description": "What is built: kernels for one query token per sequence, for several, and cache writers.",
        **_one_or_many({"enum": list(OPERATORS)}),
    },
    "backends": {"description": "What is generated for each kernel.", **_one_or_many({"enum": list(BACKENDS)})},
    "model.num_heads": {"description": "Query heads of the whole model.", **_whole(1, MOST_HEADS)},
    "model.num_kv_heads": {"description": "KV heads of the whole model.", **_whole(1, MOST_HEADS)},
    "model.max_seq_len": {"description": "The longest context, in tokens.", **_whole(1, LARGEST_INT32)},
    "model.tensor_parallel": {
        "description": "Numbers of ranks that the model is split over.",
        **_one_or_many(_whole(1, MOST_RANKS)),
    },
    **{f"cuda.{choice}": {"enum": list(values)} for choice, values in CHOICES.items()},
    "dispatch.min_seq_len": {
        "description": "Calls of more tokens than this prefer V2 to the fork's V1.",
        **_whole(0, LARGEST_INT32),
    },
    "dispatch.partition": {
        "description": "The partition size of every call, or auto: chosen for each call.",
        "anyOf": [{"const": "auto"}, {"type": "integer"}],
    },
    "dispatch.host_lengths": {
        "description": "Whether a PyTorch kernel may read the lengths of a call on a GPU, once per decode step.",
        "enum": list(HOST_LENGTHS),
    },
    "limits.max_variants": {"description": "The most kernels of the family.", **_whole(1, MOST_VARIANTS)},
    "limits.workspace_mib": {
        "description": "The most workspace of a call, in MiB.",
        **_whole(1, MOST_WORKSPACE_MIB),
    },
}
