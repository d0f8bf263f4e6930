"""Computes the scales of a compressed cache from samples of keys and values."""

from __future__ import annotations

import torch

from ..check import described, fail, kv_dtype, shape_of
from .encoding import E4M3_LARGEST, E5M2_LARGEST, INT8_LARGEST

#: The largest finite number that an element of each type of compressed cache can have.
LARGEST = {"fp8_e4m3": E4M3_LARGEST, "fp8_e5m2": E5M2_LARGEST, "int8": float(INT8_LARGEST)}

NAME = "kv_scales"


def kv_scales(key: torch.Tensor, value: torch.Tensor, kv_cache_dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute (k_scale, v_scale) of a compressed cache: two float32 tensors [kv_heads], on the device of the samples.

    The scale of each head maps the largest magnitude in the head's sample to the largest number of the cache's format.
    The cache writer clamps keys and values with larger magnitudes. To avoid clamping, take a sample of many tokens, or
    multiply the scales by a safety factor. If the sample of a head has only zeros, the scale is 1.

    key, value: samples of the keys (after RoPE) and values that will be written to the cache, [tokens, kv_heads, head
    size] in any floating-point dtype.
    kv_cache_dtype: the format of the cache: fp8 or fp8_e4m3, fp8_e5m2, int8.

    Raises ValueError for another ``kv_cache_dtype``, for samples that are empty or not finite, and for samples of a
    wrong shape.
    """
    name = kv_dtype(kv_cache_dtype, NAME)
    if name not in LARGEST:
        fail(f"a cache of kv_cache_dtype {name} has no scales", NAME)
    scales = _head_scales("key", key, LARGEST[name]), _head_scales("value", value, LARGEST[name])
    if key.shape[1] != value.shape[1]:
        fail(f"key has {key.shape[1]} KV heads and value has {value.shape[1]}; they must have equally many", NAME)
    return scales


def _head_scales(what: str, rows: torch.Tensor, largest: float) -> torch.Tensor:
    """Return the scale of each head for a sample of keys or values, float32 [kv_heads].

    The scale of a head maps the largest magnitude in the head's sample to ``largest``.

    what: the name of the sample in error messages. rows: the sample, [tokens, kv_heads, head size].
    """
    if not isinstance(rows, torch.Tensor):
        fail(f"{what} must be a tensor, got {described(rows)}", NAME)
    if rows.dim() != 3 or not rows.is_floating_point():
        fail(f"{what} must be [tokens, kv heads, head size] of floating-point numbers, got {shape_of(rows)}", NAME)
    if not rows.numel():
        fail(f"{what} must have at least one token, KV head and element, got {shape_of(rows)}", NAME)
    peak = rows.detach().abs().amax((0, 2)).float()
    if not bool(peak.isfinite().all()):
        fail(f"{what} has values that are not finite", NAME)
    return torch.where(peak > 0, peak / largest, torch.ones_like(peak))
