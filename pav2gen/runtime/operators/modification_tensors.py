"""Puts the parameter tensors of a modification, which callers pass by name, into the order in which kernels take them.

A modification is an expression in a spec that changes attention scores or hides keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import torch

from .. import check
from ..choice.miss import NoKernelError
from ..choice.select import Table


def ordered_tensors(
    table: Table,
    modification: str | None,
    given: Mapping[str, torch.Tensor] | None,
    operator: str = check.DECODE,
) -> tuple[torch.Tensor, ...]:
    """Return the parameter tensors of a modification, in the order in which the modification's definition lists them.

    table: the dispatch table, which contains the definitions of modifications.
    modification: the modification's name, or None.
    given: the tensors by their names.
    operator: the operator's name for error messages.

    Raises ValueError if a tensor is missing, is not a tensor, or has a name that the definition does not contain.
    Raises NoKernelError if tensors are given and no kernel has the modification.
    """
    if given is None and not modification:
        return ()
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        check.fail(f"modification_tensors must be a mapping of names to tensors, got {type(given).__name__}", operator)
    defined = table.modifications.get(modification or "")
    if given and modification and not defined:
        built = ", ".join(sorted(map(str, table.modifications))) or "none"
        raise NoKernelError(f"{operator}: no kernel has the modification {modification!r}; built: {built}")
    names = tuple(name for name, _ in defined.tensors) if defined else ()
    if unknown := [name for name in given if name not in names]:
        what = f"the modification {modification}" if modification else "a call without a modification"
        near = difflib.get_close_matches(str(unknown[0]), names, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(names)}" if names else ""
        check.fail(f"{what} has no tensor {', '.join(map(str, unknown))}{hint}", operator)
    if missing := [name for name in names if name not in given]:
        check.fail(f"the modification {modification} needs {', '.join(missing)} among modification_tensors", operator)
    for name in names:
        check.check_tensor(f"modification_tensors[{name!r}]", given[name], operator)
    return tuple(given[name] for name in names)
