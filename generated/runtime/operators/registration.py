"""Registers operators with torch.library.

A registered operator is a single node in the graphs of torch.compile and torch.export.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import torch

from .. import check


def register(
    package: str, name: str, schema: str, run: Callable[..., None]
) -> tuple[torch.library.Library, Callable[..., None]]:
    """Register ``run`` as the operator ``name``, in a new torch namespace that is named after the generated
    ``package``.

    Two generated packages in one process thus have separate operators.

    schema: the operator's signature in torch's syntax.

    Returns the torch library and the operator. The caller must keep a reference to the torch library, because torch
    removes the operator when the library is deleted.
    """
    stem = "pav2_" + re.sub(r"\W", "_", package)
    for suffix in itertools.count():
        namespace = f"{stem}_{suffix}" if suffix else stem
        if not hasattr(getattr(torch.ops, namespace), name):
            break
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(schema)
    library.impl(name, run, "CompositeExplicitAutograd")
    library.impl(
        name, _without_data(name), "Meta"
    )  # for fake tensors: nothing is returned, and shapes stay as they are
    return library, getattr(getattr(torch.ops, namespace), name).default


def with_tensors_checked(operator: Callable[..., None], name: str) -> Callable[..., None]:
    """Wrap a registered operator in a function that raises a short ValueError for an argument of the wrong type.

    torch's own message for a wrong type prints the whole schema. The function checks tensors before the call. The
    function checks numbers and strings only after torch has rejected a call, because a check before every call would
    take time.

    name: the operator's name in messages.
    """
    schema = operator._schema.arguments  # type: ignore[attr-defined]
    tensors = tuple((i, each.name) for i, each in enumerate(schema) if str(each.type) == "Tensor")
    optional = tuple((i, each.name) for i, each in enumerate(schema) if str(each.type) == "Optional[Tensor]")

    def call(*args: object) -> None:
        for i, argument in tensors:
            check.check_tensor(argument, args[i], name)
        for i, argument in optional:
            if args[i] is not None:
                check.check_tensor(argument, args[i], name)
        try:
            operator(*args)
        except (RuntimeError, TypeError, ValueError, OverflowError):
            for argument, value in zip(schema, args):
                _check_scalar(argument.name, value, str(argument.type), name)
            raise

    return call


def _check_scalar(argument: str, value: object, kind: str, operator: str) -> None:
    """Raise ValueError if torch cannot convert the value of ``argument`` to the schema type ``kind``.

    kind: ``int``, ``float`` or ``str``, or one of these names in ``Optional[...]``. The function checks no other types.
    """
    if value is None and kind.startswith("Optional["):
        return
    kind = kind.removeprefix("Optional[").removesuffix("]")
    checks = {"int": check.check_int, "float": check.check_number, "str": check.check_text}
    if kind in checks:
        checks[kind](argument, value, operator)


def split_scale(name: str, scale: float | torch.Tensor, operator: str) -> tuple[float, torch.Tensor | None]:
    """Split a scale of the KV cache into the two arguments of the operator's schema: a number and a tensor.

    Returns (scale, None) for a number, and (1.0, scale) for a tensor. Raises ValueError if the scale is neither a
    tensor nor a positive number that is finite in float32. The function does not read the values of a tensor.

    name: the name of the scale in messages. operator: the operator's name in messages.
    """
    if isinstance(scale, torch.Tensor):
        return 1.0, scale
    try:
        check.check_number(name, scale, operator)
    except ValueError:
        check.fail(f"{name} must be a number or a float32 tensor, got {check.described(scale)}", operator)
    if not check.SMALLEST_FLOAT32 <= scale <= check.LARGEST_FLOAT32:
        check.fail(f"{name} must be positive and finite in float32, got {scale}", operator)
    return float(scale), None


def _without_data(operator: str) -> Callable[..., None]:
    """Return the function that torch runs when an operator receives meta tensors, which have shapes but no data.

    The returned function computes nothing. The returned function raises ValueError if a tensor argument is not a meta
    tensor.

    operator: the operator's name in messages.
    """

    def run(*args: object) -> None:
        devices = {arg.device.type for arg in args if isinstance(arg, torch.Tensor)}
        if devices != {"meta"}:
            check.fail(f"all tensors must be on one device, got {', '.join(sorted(devices))}", operator)

    return run
