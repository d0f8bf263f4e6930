"""Defines ``Modification``: expressions that change or mask attention scores, and the tensors that the expressions
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pav2gen.family.modifications.parse import parse_mask, parse_score
from pav2gen.family.modifications.tree import Expression
from pav2gen.runtime.choice import dispatch_row


@dataclass(frozen=True)
class Modification:
    """One modification of attention scores: an entry of a spec file's ``modifications``, or a built-in one such as
    ALiBi.

    An expression can read parameter tensors, which are one-dimensional float32 tensors that each call of the operator
    passes. ``score`` and ``mask`` are not both None.

    score: the text of the expression that computes a new score, or None if the modification does not change scores.
    mask: the text of the condition under which a query attends to a key, or None if the modification hides no keys.
    tensors: maps the name of each parameter tensor to its dimension, ``heads`` or ``kv_heads``.
    """

    name: str
    score: str | None
    mask: str | None
    tensors: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def score_tree(self) -> Expression | None:
        """The expression ``score`` as a typed tree, or None if ``score`` is None.

        Raises ExpressionError if the text has a mistake.
        """
        return None if self.score is None else parse_score(self.score, self.tensors)

    @cached_property
    def mask_tree(self) -> Expression | None:
        """The condition ``mask`` as a typed tree, or None if ``mask`` is None.

        Raises ExpressionError if the text has a mistake.
        """
        return None if self.mask is None else parse_mask(self.mask, self.tensors)

    def for_table(self) -> dispatch_row.Modification:
        """Return this modification in the form that the dispatch table of a generated package stores."""
        return dispatch_row.Modification(self.score or "", self.mask or "", tuple(self.tensors.items()))
