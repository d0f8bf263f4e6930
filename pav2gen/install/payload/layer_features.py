"""What an attention layer asks for beside the arguments of vLLM's operators: softcap, window, sinks, another scale.

vLLM's operators have no arguments for these, but the layer's backend object has them. So its ``forward`` is wrapped
when the layer is made, and the hooks that are called inside it read them here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch


class Features(NamedTuple):
    """The features of a layer; a missing one is None.

    sliding_window: tokens, the current one included; a value that is not a number is passed on, and no kernel serves
    it. sinks: [heads] float32. scale: of the scores, where it is not head_size ** -0.5. required: vLLM's own kernels
    compute without these features and must not run; otherwise they are vLLM's own to compute.
    """

    softcap: float | None = None
    sliding_window: Any = None
    sinks: torch.Tensor | None = None
    scale: float | None = None
    required: bool = False

    def key(self) -> dict[str, Any]:
        """The arguments that ``supports`` and ``check_model`` have for these features; none where there are none."""
        given = {"softcap": self.softcap, "sliding_window": self.sliding_window, "sinks": self.sinks is not None}
        return {name: value for name, value in given.items() if value not in (None, False)}

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the operators for these features; none where there are none."""
        given = {"softcap": self.softcap, "sliding_window": self.sliding_window, "sinks": self.sinks}
        return {name: value for name, value in given.items() if value is not None}


NONE = Features()

_active: ContextVar[Features] = ContextVar("pav2_features", default=NONE)


def active() -> Features:
    """The features of the layer whose ``forward`` is running; none outside of a layer that has some."""
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
