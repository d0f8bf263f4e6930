"""The features of an attention layer that vLLM's operators have no arguments for: softcap, window, sinks, scale.

The layer's backend object knows these features. When the layer is made, the backend's ``forward`` is wrapped. The hooks
that run inside ``forward`` read the features here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch


class Features(NamedTuple):
    """The features of a layer. A feature that the layer does not use is None.

    sliding_window: tokens, the current one included. A value that is not a number is passed on, and no kernel serves
    it. sinks: [heads] float32. scale: the scale of the scores; None means head_size ** -0.5. required: vLLM's own
    kernels would ignore these features, so they must not run. If it is False, vLLM's own kernels compute the features.
    """

    softcap: float | None = None
    sliding_window: Any = None
    sinks: torch.Tensor | None = None
    scale: float | None = None
    required: bool = False

    def key(self) -> dict[str, Any]:
        """The keyword arguments of ``supports`` and ``check_model`` for these features. Unused features are absent."""
        given = {"softcap": self.softcap, "sliding_window": self.sliding_window, "sinks": self.sinks is not None}
        return {name: value for name, value in given.items() if value not in (None, False)}

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the operators for these features. Unused features are absent."""
        given = {"softcap": self.softcap, "sliding_window": self.sliding_window, "sinks": self.sinks}
        return {name: value for name, value in given.items() if value is not None}


NONE = Features()

_active: ContextVar[Features] = ContextVar("pav2_features", default=NONE)


def active() -> Features:
    """The features of the layer that is running its ``forward``. NONE outside of such a layer."""
    return _active.get()


def wrap_forward(impl: Any, features: Features) -> None:
    """Make ``features`` the active ones while ``impl.forward`` runs."""
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
