"""Checks the arguments of the cache writer before anything is written, so that kernels can rely on them."""

from __future__ import annotations

from functools import partial

import torch

from ..check import DTYPES, check_pages, check_scale, check_tensor, dtype_name, fail, kv_dtype, shape_of, storage_dtype
from ..choice.key import CacheKey
from .call import Write

NAME = "reshape_and_cache"
TENSORS = ("key", "value", "key_cache", "value_cache", "slot_mapping")

_fail = partial(fail, operator=NAME)


def check(write: Write, kv_cache_dtype: str) -> CacheKey:
    """Check all arguments of a call of ``reshape_and_cache``. Raises ValueError for the first wrong argument.

    Returns the key by which the dispatch table finds the kernel for the call.
    """
    name = kv_dtype(kv_cache_dtype, NAME)
    for field in TENSORS:
        check_tensor(field, getattr(write, field), NAME)
    check_rows("key", write.key, write.key)
    check_rows("value", write.value, write.key)
    check_caches(write, name)
    check_slots(write)
    for field in ("k_scale", "v_scale"):
        if isinstance(scale := getattr(write, field), torch.Tensor):
            check_scale(field, scale, write.key.shape[1], NAME)
    check_devices(write)
    return CacheKey(
        head_size=write.key.shape[2],
        block_size=write.key_cache.shape[3],
        dtype=dtype_name(write.key.dtype),
        kv_cache_dtype=name,
    )


def check_rows(name: str, rows: torch.Tensor, key: torch.Tensor) -> None:
    """Raise ValueError unless ``rows`` has the shape and dtype of ``key``, and the heads of a token are contiguous.

    The stride between tokens can be any number.

    name: the name of ``rows`` in error messages. rows: the argument ``key`` or ``value`` of a call, [tokens, kv heads,
    head size].
    """
    if rows.dim() != 3 or rows.dtype not in DTYPES:
        _fail(f"{name} must be [tokens, kv heads, head size] in {', '.join(DTYPES.values())}, got {shape_of(rows)}")
    if rows.shape != key.shape or rows.dtype != key.dtype:
        _fail(f"{name} must be like key, {shape_of(key)}, got {shape_of(rows)}")
    if rows.numel() and (rows.stride(2) != 1 or (rows.shape[1] > 1 and rows.stride(1) != rows.shape[2])):
        _fail(f"the heads of a token must be contiguous in {name}, got strides {rows.stride()}")


def check_caches(write: Write, kv_cache_dtype: str) -> None:
    """Raise ValueError unless both caches have vLLM's layout and fit the shape of ``key``.

    In both caches, each page must start at an address that is a multiple of 16 bytes.
    """
    key, key_cache, value_cache = write.key, write.key_cache, write.value_cache
    stored = storage_dtype(kv_cache_dtype, key.dtype)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache.dtype != stored:
            wanted = f"{dtype_name(stored)} for {dtype_name(key.dtype)} keys and kv_cache_dtype {kv_cache_dtype}"
            _fail(f"{name} must be {wanted}, got {shape_of(cache)}")
    x, (_, kv_heads, head_size) = 16 // key_cache.element_size(), key.shape
    heads, grains, width = (*key_cache.shape[1:3], key_cache.shape[4]) if key_cache.dim() == 5 else (0, 0, 0)
    if (heads, grains * x, width) != (kv_heads, head_size, x):
        _fail(f"key_cache must be [blocks, {kv_heads}, {head_size} / {x}, block size, {x}], got {shape_of(key_cache)}")
    blocks, page = key_cache.shape[0], key_cache.shape[3]
    if value_cache.shape != (blocks, kv_heads, head_size, page):
        _fail(f"value_cache must be {[blocks, kv_heads, head_size, page]}, got {shape_of(value_cache)}")
    if not blocks or not kv_heads:
        _fail(f"the cache has {kv_heads} KV heads in {blocks} blocks")
    check_pages("key_cache", key_cache, x, NAME)
    check_pages("value_cache", value_cache, x, NAME)


def check_slots(write: Write) -> None:
    """Raise ValueError unless slot_mapping is contiguous int64 or int32 [tokens]."""
    slots, tokens = write.slot_mapping, write.key.shape[0]
    if slots.shape != (tokens,) or slots.dtype not in (torch.int64, torch.int32) or not slots.is_contiguous():
        _fail(f"slot_mapping must be contiguous int64 or int32 [{tokens}], got {shape_of(slots)}")


def check_devices(write: Write) -> None:
    """Raise ValueError unless all tensors of a call are on the device of ``key``."""
    for name, value in write._asdict().items():
        if isinstance(value, torch.Tensor) and value.device != write.key.device:
            _fail(f"{name} is on {value.device}, key on {write.key.device}")
