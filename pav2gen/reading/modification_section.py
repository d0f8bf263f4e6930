"""Reads the section ``modifications`` of a spec file, which defines changes to attention scores and masks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pav2gen.family.modifications.modification import Modification
from pav2gen.family.modifications.parse import INDEX, ExpressionError, parse_mask, parse_score
from pav2gen.family.modifications.tree import FUNCTIONS, NAMES
from pav2gen.reading.yaml_node import Node
from pav2gen.runtime.choice.key import NAME_WORDS, name_allowed
from pav2gen.wording import one_of, quoted

MOST_TENSORS = 4


def read_modifications(node: Node) -> dict[str, Modification]:
    """Read the section ``modifications`` of a spec file, and return the modifications by name.

    node: the YAML node of the section.

    Raises UserError for a mistake in a modification. For a mistake in an expression, the error also gives the column.
    """
    return {name: _modification(name, child) for name, child in node.fields((), _names(node)).items()}


def _names(node: Node) -> tuple[str, ...]:
    """Return the names of the modifications in the section ``node``.

    Raises UserError if the name of a modification is not allowed.
    """
    fields = node.value if isinstance(node.value, dict) else {}
    for name, child in fields.items():
        _check_name(child, name, "the name of a modification")
    return tuple(fields)


def _check_name(node: Node, name: str, what: str) -> None:
    if not name_allowed(name):
        raise node.fail(f"{what}, {quoted(name)}, must be {NAME_WORDS}")


def _modification(name: str, node: Node) -> Modification:
    fields = node.fields((), ("score", "mask", "tensors"))
    if "score" not in fields and "mask" not in fields:
        raise node.fail(f'{node.title} has neither score nor mask; add one, such as mask: "q - k < 1024"')
    tensors = _tensors(fields["tensors"]) if "tensors" in fields else {}
    texts: dict[str, str] = {}
    for key, parse in (("score", parse_score), ("mask", parse_mask)):
        if key in fields:
            texts[key] = fields[key].text()
            try:
                parse(texts[key], tensors)
            except ExpressionError as error:
                indent = len(str(fields[key].value)) - len(str(fields[key].value).lstrip())
                raise fields[key].fail_at(error.column + indent, f"{fields[key].title}: {error.message}") from None
    _check_tensors_used(fields, tensors, texts)
    return Modification(name, texts.get("score"), texts.get("mask"), tensors)


def _tensors(node: Node) -> dict[str, str]:
    """Return a dict from the name of each tensor of a modification to its dimension, ``heads`` or ``kv_heads``."""
    children = node.value if isinstance(node.value, dict) else {}
    if not children:
        raise node.fail(f"{node.title} must be a mapping of names to [heads] or [kv_heads]")
    if len(children) > MOST_TENSORS:
        raise node.fail(f"{node.title} has {len(children)} tensors; at most {MOST_TENSORS} are allowed")
    for name, child in children.items():
        _check_name(child, name, "the name of a tensor")
        if name in NAMES or name in FUNCTIONS:
            raise child.fail(f"the name {quoted(name)} has a meaning in expressions; take another for the tensor")
    return {name: _axis(child) for name, child in children.items()}


def _axis(node: Node) -> str:
    axes = [item.text() for item in node.items()]
    if len(axes) != 1 or axes[0] not in INDEX:
        raise node.fail(f"{node.title} must be {one_of([f'[{axis}]' for axis in INDEX])}: one number for each head")
    return axes[0]


def _check_tensors_used(fields: Mapping[str, Node], tensors: Mapping[str, str], texts: Mapping[str, str]) -> None:
    for tensor in tensors:
        if not any(re.search(rf"\b{tensor}\b", text) for text in texts.values()):
            raise fields["tensors"].fail(f"{tensor} is in neither score nor mask; remove it")
