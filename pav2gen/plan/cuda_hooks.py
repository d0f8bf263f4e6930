"""Generates the CUDA code that changes scores and masks keys before the softmax.

The generated code runs in two places of a kernel, called hooks. The first hook changes a score, and the second hook
masks keys.
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
    """The CUDA code of one modification, such as softcap, that changes a score or masks keys.

    text: the CUDA expression for the new score, or for whether the query attends to the key.
    about: the name of the modification.
    """

    text: str
    about: str


class Parameter(NamedTuple):
    """The CUDA code that reads one parameter tensor of a modification, such as the ALiBi slopes.

    array: the name of the array in shared memory that holds the tensor's elements for the query heads of the thread
    block.
    pointer: the CUDA code for the pointer to the tensor in global memory.
    place: the CUDA code for the tensor index of a query head's element. In this code, ``h`` is the index of the query
    head in the thread block.
    """

    array: str
    pointer: str
    place: str


@dataclass(frozen=True)
class CudaHooks:
    """The generated CUDA code that changes a score and masks keys."""

    variant: AttentionVariant

    @cached_property
    def _entries(self) -> tuple[Modification, ...]:
        return entries(self.variant)

    @property
    def _own_tensors(self) -> Mapping[str, str]:
        return self.variant.own.tensors if self.variant.own else {}

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameter tensors of all modifications of the kernel, such as the ALiBi slopes."""
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
        """The generated code that changes a score, as expressions that the kernel evaluates one after the other.

        The kernel assigns the result of each expression to the variable ``s``, which holds the score.
        """
        return tuple(Line(cuda_text(e.score_tree, self._names), e.name) for e in self._entries if e.score_tree)

    @cached_property
    def masks(self) -> tuple[Line, ...]:
        """The generated code that masks keys, as a tuple of expressions.

        A query attends to a key only if all mask expressions are true.
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
        """Whether the generated CUDA code calls the functions ``floor_div`` or ``floor_mod``."""
        return any(map(uses_floor, self._trees))

    def reads_head(self, lines: tuple[Line, ...]) -> bool:
        """Whether the expressions ``lines`` read the index of the query head among all query heads.

        lines: either ``scores`` or ``masks`` of this object.
        """
        trees = [e.score_tree if lines is self.scores else e.mask_tree for e in self._entries]
        return (lines is self.masks and self.variant.blocksparse) or any(t and uses(t, "h") for t in trees)
