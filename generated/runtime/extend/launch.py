"""Launches a CUDA extend kernel through its C interface."""

from __future__ import annotations

from collections.abc import Callable

from ..select import Row
from .call import ExtendCall


def launch(function: Callable[..., int], call: ExtendCall, row: Row, explain: Callable[[int], str]) -> None:
    """Run an entry function on a checked call, on the current stream of the call's device.

    ``explain`` makes a sentence of an error code. Raises RuntimeError with it if the launch fails.
    """
    raise RuntimeError(f"paged_attention_extend: {row.symbol} has no CUDA interface yet")
