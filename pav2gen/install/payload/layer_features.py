"""The features of an attention layer that vLLM does not pass to its operators: softcap, window, sinks and scale.

The constructor of a layer calls ``check_layer``, which reads these features from the layer's backend object.
``check_layer`` then wraps the backend's ``forward``. While ``forward`` runs, the hooks get the features from
``active``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch


class Features(NamedTuple):
    """The features of a layer. A feature that the layer does not use is None.

    sliding_window: the number of tokens, including the current one. Values of other types than int are passed on to the
    operators, but no kernel serves them.
    sinks: [heads] float32.
    scale: the factor of the scores; None means head_size ** -0.5.
    required: whether vLLM's own kernels would ignore these features, so that they must not run.
    """

    softcap: float | None = None
    sliding_window: Any = None
    sinks: torch.Tensor | None = None
    scale: float | None = None
    required: bool = False

    def key(self) -> dict[str, Any]:
        """Return the keyword arguments of ``supports`` and ``check_model`` for these features.

        Unused features are absent.
        """
        given = {"softcap": self.softcap, "sliding_window": self.sliding_window, "sinks": self.sinks is not None}
        return {name: value for name, value in given.items() if value not in (None, False)}

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the operators for these features. Unused features are absent."""
        given = {"softcap": self.softcap, "sliding_window": self.sliding_window, "sinks": self.sinks}
        return {name: value for name, value in given.items() if value is not None}


NONE = Features()

_active: ContextVar[Features] = ContextVar("pav2_features", default=NONE)


def active() -> Features:
    """Return the features of the layer that is now running its ``forward``. Outside of any ``forward``, return NONE."""
    return _active.get()


def wrap_forward(impl: Any, features: Features) -> None:
    """Wrap ``impl.forward``, so that ``active`` returns ``features`` while it runs."""
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
