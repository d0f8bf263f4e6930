"""Writes the CUDA code of a kernel's two hooks.

The score hook changes a score before the softmax. The mask hook masks keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pav2gen.family.modifications.builtin import SLOPES, entries
from pav2gen.family.modifications.cuda_text import cuda_text, uses_floor
from pav2gen.family.modifications.modification import Modification
from pav2gen.family.modifications.tree import Expression, uses
from pav2gen.family.variant import AttentionVariant

#: A dict from a name in the expressions of a modification to its CUDA code in a hook. In a hook, ``h`` is the index of
#: the query head among all query heads, and ``head`` is its index in the thread block.
NAMES = {"s": "s", "q": "q", "k": "k", "h": "h", "kvh": "at.kv_head", "len": "at.length"}


_INDEX = {"heads": "at.first_head + h", "kv_heads": "at.kv_head"}


class Line(NamedTuple):
    """One step of a hook: what one modification does at the place in a kernel where scores, or masks, are computed.

    text: the CUDA expression that the step evaluates.
    about: the name of the modification that the step comes from.
    """

    text: str
    about: str


class Parameter(NamedTuple):
    """A parameter tensor of a modification, such as the ALiBi slopes, in the code of a CUDA kernel.

    array: the name of the array in shared memory. The array holds the tensor's elements for the query heads of the
    thread block.
    pointer: the CUDA code for the pointer to the tensor in global memory.
    place: the CUDA code for the index, in the tensor, of the element that belongs to a query head. In this code, unlike
    in ``NAMES``, ``h`` is the index of the query head in the thread block.
    """

    array: str
    pointer: str
    place: str


@dataclass(frozen=True)
class CudaHooks:
    """The CUDA code of a kernel's two hooks, one that changes a score and one that masks keys."""

    variant: AttentionVariant

    @cached_property
    def _entries(self) -> tuple[Modification, ...]:
        return entries(self.variant)

    @property
    def _own_tensors(self) -> Mapping[str, str]:
        return self.variant.own.tensors if self.variant.own else {}

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameter tensors of all modifications of the kernel."""
        found = [Parameter("slope", "a.alibi_slopes", _INDEX["heads"])] if self.variant.alibi else []
        for number, (name, axis) in enumerate(self._own_tensors.items()):
            found.append(Parameter(f"{name}_", f"a.tensors[{number}]", _INDEX[axis]))
        return tuple(found)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        own = {name: f"shared.{name}_[head]" for name in self._own_tensors}
        return {**NAMES, SLOPES: "shared.slope[head]", **own}

    @cached_property
    def scores(self) -> tuple[Line, ...]:
        """The steps of the hook that changes a score. The kernel evaluates them in order, and assigns each result to
        ``s``.
        """
        return tuple(Line(cuda_text(e.score_tree, self._names), e.name) for e in self._entries if e.score_tree)

    @cached_property
    def masks(self) -> tuple[Line, ...]:
        """The steps of the hook that masks keys. A query attends to a key only if the expressions of all steps are
        true.
        """
        found = [Line(cuda_text(e.mask_tree, self._names), e.name) for e in self._entries if e.mask_tree]
        if self.variant.blocksparse:
            found.append(Line("attends(a, h, at.kv_head, k, at.length)", "block-sparse"))
        return tuple(found)

    @cached_property
    def _trees(self) -> tuple[Expression, ...]:
        trees = (tree for entry in self._entries for tree in (entry.score_tree, entry.mask_tree))
        return tuple(tree for tree in trees if tree is not None)

    @property
    def uses_floor(self) -> bool:
        """Whether the CUDA code of a hook calls ``floor_div`` or ``floor_mod``."""
        return any(map(uses_floor, self._trees))

    def reads_head(self, lines: tuple[Line, ...]) -> bool:
        """Whether the hook with the steps ``lines`` reads the index of the query head among all query heads.

        lines: either ``scores`` or ``masks`` of this object.
        """
        trees = [e.score_tree if lines is self.scores else e.mask_tree for e in self._entries]
        return (lines is self.masks and self.variant.blocksparse) or any(t and uses(t, "h") for t in trees)
