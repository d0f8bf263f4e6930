"""Writes the PyTorch code of a kernel's two hooks. The score hook changes the scores before the softmax. The mask hook
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
    """One step of a hook: what one modification does at the place in a kernel where scores, or masks, are computed.

    about: the name of the modification that the step comes from.
    text: the PyTorch statements of the step, and their costs.
    """

    about: str
    text: TorchText


@dataclass(frozen=True)
class TorchHooks:
    """The PyTorch code of a kernel's two hooks, one that changes the scores and one that masks keys, and its costs.

    A sliding window needs no hook. The kernel masks the tokens before the window as it masks those past the end of a
    sequence.
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
        """Return over which dimensions of the scores the names and parameter tensors in the expressions of ``entry``
        vary.

        The result is a dict from a name to a key of ``torch_text.REACH``. The mapping has the names of all parameter
        tensors. It has another name only if its entry in ``REACH`` is wrong for this kernel: for example, the position
        ``k`` of a key differs between sequences if there is a sliding window.
        """
        axes = {**entry.tensors}
        if self.variant.sliding_window:
            axes["k"] = "k by row"
        return {**axes, "s": "s by query", "q": "q by query"} if self._extends else axes

    @cached_property
    def scores(self) -> tuple[Step, ...]:
        """The steps of the hook that changes the scores. The steps run in order and change the scores in place."""
        trees = ((e, e.score_tree) for e in self._entries)
        return tuple(Step(e.name, self._text(score_text, e, x)) for e, x in trees if x)

    @cached_property
    def masks(self) -> tuple[Step, ...]:
        """The steps of the hook that masks keys. Each step computes a tensor that is true where a query does not attend
        to a key.
        """
        trees = ((e, e.mask_tree) for e in self._entries)
        return tuple(Step(e.name, self._text(hidden_text, e, x)) for e, x in trees if x)

    def _text(self, translate: Callable[..., TorchText], entry: Modification, tree: Expression) -> TorchText:
        return translate(tree, self._names, self._axes(entry), SLOT, self._dimensions)

    def inputs(self, steps: tuple[Step, ...]) -> dict[str, str]:
        """Return the parameter tensors that ``steps`` read, as a dict. The dict maps the tensor's name in the steps to
        PyTorch code for a view of the tensor that was passed to the kernel.
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
        """Whether ``steps`` read ``name``, which is a name in the expressions of a modification, such as ``k`` or
        ``len``.
        """
        return any(name in step.text.names for step in steps)

    @property
    def slots(self) -> int:
        """The number of buffers that the hooks need in the workspace for temporaries. Each slot is as large as the
        scores of a tile.
        """
        return max((step.text.slots for step in (*self.scores, *self.masks)), default=0)

    @property
    def token_values(self) -> int:
        """How many temporaries the hooks allocate that have one element for each token of an item. The hooks do not run
        at the same time, so this is the number for the hook that allocates more of them.
        """
        return max((sum(step.text.token_values for step in steps) for steps in (self.scores, self.masks)), default=0)

    def _calls_of(self, steps: tuple[Step, ...]) -> int:
        inputs = ("h", "kvh") if self._extends else ("q", "h", "kvh")
        clamped = [self.reads(steps, name) for name in ("len", "q")] if self._extends else [self.clamps(steps)]
        made = sum(self.reads(steps, name) for name in inputs) + sum(clamped) * self.clamps(steps)
        return made + sum(step.text.calls for step in steps)

    def clamps(self, steps: tuple[Step, ...]) -> bool:
        """Whether the kernel replaces a sequence length of 0 by 1 before it runs ``steps``, because one of their
        expressions may divide by the length.
        """
        return bool(self.variant.own) and (self.reads(steps, "len") or self.reads(steps, "q"))

    @property
    def calls(self) -> int:
        """The number of ATen calls that both hooks together make for one tile, not counting views."""
        return self._calls_of(self.scores) + self._calls_of(self.masks) + len(self.masks)
