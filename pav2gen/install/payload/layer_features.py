"""The features of an attention layer that vLLM does not pass to its operators: softcap, window, sinks and scale.

``check_layer`` reads these features when vLLM makes a layer, and wraps the ``forward`` of the layer's backend object.
While ``forward`` runs, ``active`` returns the features.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch


class Features(NamedTuple):
    """The features of an attention layer. A feature that the layer does not use is None.

    softcap: the limit on scores: a score s becomes softcap * tanh(s / softcap).
    sliding_window: the number of tokens that a query sees, including its own. A value that is not an int is passed on
    to the operators, but no kernel accepts such a value.
    sinks: [number of query heads] float32, one logit for each head, which adds only to the denominator of the softmax.
    scale: the factor by which the product of query and key is multiplied. None means head_size ** -0.5.
    required: whether vLLM's own kernels must not run, because they would ignore these features.
    """

    softcap: float | None = None
    sliding_window: Any = None
    sinks: torch.Tensor | None = None
    scale: float | None = None
    required: bool = False

    def key(self) -> dict[str, Any]:
        """Return the softcap, window and sinks that the layer uses, as keyword arguments of ``supports`` and
        ``check_model``.

        The value of ``sinks`` is True instead of the tensor.
        """
        given = {"softcap": self.softcap, "sliding_window": self.sliding_window, "sinks": self.sinks is not None}
        return {name: value for name, value in given.items() if value not in (None, False)}

    def arguments(self) -> dict[str, Any]:
        """Return the softcap, window and sinks that the layer uses, as keyword arguments of the generated operators."""
        given = {"softcap": self.softcap, "sliding_window": self.sliding_window, "sinks": self.sinks}
        return {name: value for name, value in given.items() if value is not None}


NONE = Features()

_active: ContextVar[Features] = ContextVar("pav2_features", default=NONE)


def active() -> Features:
    """Return the features of the layer whose ``forward`` is running now. If no layer's ``forward`` is running, return
    ``NONE``.
    """
    return _active.get()


def wrap_forward(impl: Any, features: Features) -> None:
    """Wrap ``impl.forward``, so that ``active`` returns ``features`` while ``impl.forward`` runs.

    impl: the backend object of an attention layer (its attribute ``impl``).
    """
    impl.forward = _with_features(impl.forward, features)


def _with_features(forward: Callable[..., Any], features: Features) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        token = _active.set(features)
        try:
            return forward(*args, **kwargs)
        finally:
            _active.reset(token)

    return run
