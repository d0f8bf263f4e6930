"""Registers operators with torch.library, so that torch.compile and torch.export treat each as one operation."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import torch


def register(
    package: str, name: str, schema: str, run: Callable[..., None]
) -> tuple[torch.library.Library, Callable[..., None]]:
    """Register ``run`` as operator ``name`` in a separate namespace, so that two packages can share a process.

    Returns the library and the operator. The caller must keep the library alive.
    """
    stem = "pav2_" + re.sub(r"\W", "_", package)
    for suffix in itertools.count():
        namespace = f"{stem}_{suffix}" if suffix else stem
        if not hasattr(getattr(torch.ops, namespace), name):
            break
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(schema)
    library.impl(name, run, "CompositeExplicitAutograd")
    library.impl(name, _without_data, "Meta")  # for fake tensors: nothing is returned, and shapes stay as they are
    return library, getattr(getattr(torch.ops, namespace), name).default


def split_scale(scale: float | torch.Tensor) -> tuple[float, torch.Tensor | None]:
    """Split a scale into the two arguments of the schema: (float, None), or (1.0, tensor)."""
    return (1.0, scale) if isinstance(scale, torch.Tensor) else (float(scale), None)


def _without_data(*args: object) -> None:
    """The operator's implementation for meta tensors. It does nothing. Raises ValueError if tensors' devices differ."""
    devices = {arg.device.type for arg in args if isinstance(arg, torch.Tensor)}
    if devices != {"meta"}:
        raise ValueError(f"all tensors must be on one device, got {', '.join(sorted(devices))}")
