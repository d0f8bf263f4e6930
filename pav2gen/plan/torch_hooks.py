"""Generates the PyTorch code that changes scores and masks keys before the softmax.

The generated code runs in two places of a kernel, called hooks. The first hook changes the scores, and the second hook
masks keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pav2gen.family.modifications.builtin import SLOPES, entries
from pav2gen.family.modifications.modification import Modification
from pav2gen.family.modifications.torch_text import (
    DIMENSIONS,
    EXTEND_DIMENSIONS,
    TorchText,
    hidden_text,
    score_text,
)
from pav2gen.family.modifications.tree import Expression
from pav2gen.family.variant import AttentionVariant

#: NAMES is a dict from a name in the expressions of a modification to its PyTorch code. The code is a tensor that
#: broadcasts to the scores of a tile. The dimensions of the scores are ``DIMENSIONS`` of ``torch_text``, and in an
#: extend kernel ``EXTEND_DIMENSIONS``. SLOT is the code of a workspace buffer for temporaries; the number of the buffer
#: replaces ``{}``.
NAMES = {"s": "scores", "q": "q", "k": "k", "h": "h", "kvh": "kvh", "len": "length"}
SLOT = "space.term{}"


class Step(NamedTuple):
    """The PyTorch code of one modification, such as softcap, that changes scores or masks keys.

    about: the name of the modification.
    text: the PyTorch statements, and their costs.
    """

    about: str
    text: TorchText


@dataclass(frozen=True)
class TorchHooks:
    """The generated PyTorch code that changes scores and masks keys, and the costs of this code.

    The generated score and mask code does not handle a sliding window. The kernel masks tokens before the window in the
    same way as tokens past the end of a sequence.
    """

    variant: AttentionVariant

    @cached_property
    def _entries(self) -> tuple[Modification, ...]:
        return tuple(entry for entry in entries(self.variant) if entry.name != "sliding window")

    @cached_property
    def _own(self) -> Mapping[str, str]:
        return self.variant.own.tensors if self.variant.own else {}

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return {**NAMES, SLOPES: "slopes", **{name: f"{name}_" for name in self._own}}

    @property
    def _extends(self) -> bool:
        return self.variant.operator == "extend"

    @property
    def _dimensions(self) -> tuple[str, ...]:
        return EXTEND_DIMENSIONS if self._extends else DIMENSIONS

    def _axes(self, entry: Modification) -> Mapping[str, str]:
        """Return the dimensions of the score tensor over which the variables in the expressions of ``entry`` vary.

        The result is a dict from variable name to a key of ``torch_text.REACH``. The dict includes all parameter
        tensors, such as the ALiBi slopes. The dict includes any other variable only if ``REACH`` states wrong
        dimensions for this kernel. For example, with a sliding window, the key position ``k`` differs between
        sequences.
        """
        axes = {**entry.tensors}
        if self.variant.sliding_window:
            axes["k"] = "k by row"
        return {**axes, "s": "s by query", "q": "q by query"} if self._extends else axes

    @cached_property
    def scores(self) -> tuple[Step, ...]:
        """The generated code that changes the scores in place, as steps that run one after the other."""
        trees = ((e, e.score_tree) for e in self._entries)
        return tuple(Step(e.name, self._text(score_text, e, x)) for e, x in trees if x)

    @cached_property
    def masks(self) -> tuple[Step, ...]:
        """The generated code that masks keys, as a tuple of steps.

        Each step computes a tensor that is true where a query does not attend to a key.
        """
        trees = ((e, e.mask_tree) for e in self._entries)
        return tuple(Step(e.name, self._text(hidden_text, e, x)) for e, x in trees if x)

    def _text(self, translate: Callable[..., TorchText], entry: Modification, tree: Expression) -> TorchText:
        return translate(tree, self._names, self._axes(entry), SLOT, self._dimensions)

    def inputs(self, steps: tuple[Step, ...]) -> dict[str, str]:
        """Return the parameter tensors that ``steps`` read, such as the ALiBi slopes, as a dict.

        The dict maps the name of a tensor in the generated code to PyTorch code that creates a view of the kernel's
        argument.
        """
        read = frozenset().union(*(step.text.names for step in steps))
        pointers = {SLOPES: ("slopes", "call.alibi_slopes", "heads")}
        pointers |= {n: (f"{n}_", f"call.tensors[{i}]", axis) for i, (n, axis) in enumerate(self._own.items())}
        shape = "1, 1, -1, 1" if self._extends else "1, 1, -1"
        return {
            name: f"{pointer}.view({shape}, {self.variant.gqa_ratio if axis == 'heads' else 1}, 1)"
            for tensor, (name, pointer, axis) in pointers.items()
            if tensor in read
        }

    def reads(self, steps: tuple[Step, ...], name: str) -> bool:
        """Whether ``steps`` read the variable ``name``, such as ``k`` (the key position) or ``len`` (the sequence
        length).
        """
        return any(name in step.text.names for step in steps)

    @property
    def slots(self) -> int:
        """The number of temporary buffers that the generated score and mask code needs.

        Each temporary buffer is as large as the scores that the kernel holds in memory at the same time.
        """
        return max((step.text.slots for step in (*self.scores, *self.masks)), default=0)

    @property
    def token_values(self) -> int:
        """The number of temporaries with one element per token that the generated score and mask code allocates at the
        same time.

        The score code and the mask code do not run at the same time. The result is therefore the larger of the score
        code's number and the mask code's number.
        """
        return max((sum(step.text.token_values for step in steps) for steps in (self.scores, self.masks)), default=0)

    def _calls_of(self, steps: tuple[Step, ...]) -> int:
        inputs = ("h", "kvh") if self._extends else ("q", "h", "kvh")
        clamped = [self.reads(steps, name) for name in ("len", "q")] if self._extends else [self.clamps(steps)]
        made = sum(self.reads(steps, name) for name in inputs) + sum(clamped) * self.clamps(steps)
        return made + sum(step.text.calls for step in steps)

    def clamps(self, steps: tuple[Step, ...]) -> bool:
        """Whether the kernel replaces a sequence length of 0 by 1 before the kernel runs ``steps``.

        The replacement prevents a division by zero in user-defined expressions.
        """
        return bool(self.variant.own) and (self.reads(steps, "len") or self.reads(steps, "q"))

    @property
    def calls(self) -> int:
        """The number of ATen calls that the generated score and mask code makes for one tile.

        A tile is a set of partitions that the kernel processes together.

        ATen calls that only create views do not count.
        """
        return self._calls_of(self.scores) + self._calls_of(self.masks) + len(self.masks)
