"""Reads a value of an axis, that is, of a property that tells kernels apart, from a YAML node."""

from __future__ import annotations

from collections.abc import Callable

from pav2gen.family.axes import Axis
from pav2gen.reading.yaml_node import Node


def reader_of(axis: Axis) -> Callable[[Node], object]:
    """Return a function that reads a value of ``axis`` from a YAML node.

    The function raises UserError, with ``file:line``, if the value does not have the type of the axis. The function
    does not check whether the axis allows the value, because ``rules.check`` does.
    """
    read = {int: Node.integer, float: Node.number, bool: Node.boolean, str: Node.text}[axis.kind]

    def value(node: Node) -> object:
        if axis.nullable and node.is_null():
            return None
        found = read(node)
        return axis.aliases.get(found, found) if isinstance(found, str) else found

    return value
