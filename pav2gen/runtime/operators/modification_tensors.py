"""The parameter tensors of a modification: from the caller's mapping to the order of its definition."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .. import check
from ..select import Table


def ordered_tensors(
    table: Table,
    modification: str | None,
    given: Mapping[str, torch.Tensor] | None,
    operator: str = check.DECODE,
) -> tuple[torch.Tensor, ...]:
    """The parameter tensors of a modification, in the order of its definition in ``table``.

    Raises ValueError for one that is missing, or that the modification does not have.
    """
    defined = table.modifications.get(modification or "")
    names = tuple(name for name, _ in defined.tensors) if defined else ()
    given = given or {}
    if missing := [name for name in names if name not in given]:
        check.fail(f"the modification {modification} needs {', '.join(missing)} among modification_tensors", operator)
    if unknown := [name for name in given if name not in names]:
        what = f"the modification {modification}" if modification else "a call without a modification"
        check.fail(f"{what} has no tensor {', '.join(unknown)}", operator)
    return tuple(given[name] for name in names)
