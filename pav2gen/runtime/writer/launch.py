"""Launches a CUDA kernel that writes new keys and values into the KV cache, through the kernel's C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch

from ..launch import CODES, device_of
from .call import Write

VERSION = 1


class WriteArgs(ctypes.Structure):
    """The C struct ``Pav2WriteArgs`` of runtime/cuda/pav2_write.h, with the same fields in the same order."""

    _fields_ = (
        *((name, c_int32) for name in ("version", "size")),
        *((name, c_void_p) for name in ("key", "value", "key_cache", "value_cache", "slot_mapping")),
        *((name, c_void_p) for name in ("k_scale_ptr", "v_scale_ptr")),
        *((name, c_int64) for name in ("key_stride", "value_stride", "key_block_stride", "key_head_stride")),
        *((name, c_int64) for name in ("value_block_stride", "value_head_stride", "num_slots")),
        *((name, c_int32) for name in ("num_tokens", "num_kv_heads", "slot_bytes")),
        *((name, c_int32) for name in ("k_scale_stride", "v_scale_stride")),
        *((name, c_float) for name in ("k_scale", "v_scale")),
    )


def launch(function: Callable[..., int], write: Write, explain: Callable[[int], str]) -> None:
    """Run a CUDA cache writer on a call with checked arguments, on the current stream of the call's device.

    Raises RuntimeError if the launch fails.

    function: the writer's entry function in the library, which returns 0 or an error code.
    explain: a function that takes an error code, and returns a sentence for the message of the error.
    """
    args = arguments(write)
    with device_of(write.key) as stream:
        code = function(ctypes.byref(args), c_void_p(stream))
    if code:
        raise RuntimeError(f"reshape_and_cache: {CODES.get(code) or explain(code)}")


def arguments(write: Write) -> WriteArgs:
    """Make the C struct with the arguments of the call ``write``."""
    tokens, kv_heads, _ = write.key.shape
    args = WriteArgs(version=VERSION, size=ctypes.sizeof(WriteArgs), num_tokens=tokens, num_kv_heads=kv_heads)
    for name in ("key", "value", "key_cache", "value_cache", "slot_mapping"):
        setattr(args, name, getattr(write, name).data_ptr())
    args.key_stride, args.value_stride = write.key.stride(0), write.value.stride(0)
    args.key_block_stride, args.key_head_stride = write.key_cache.stride()[:2]
    args.value_block_stride, args.value_head_stride = write.value_cache.stride()[:2]
    args.num_slots = write.key_cache.shape[0] * write.key_cache.shape[3]
    args.slot_bytes = write.slot_mapping.element_size()
    for name in ("k_scale", "v_scale"):
        scale = getattr(write, name)
        if isinstance(scale, torch.Tensor):
            setattr(args, f"{name}_ptr", scale.data_ptr())
            setattr(args, f"{name}_stride", int(scale.numel() > 1))
        else:
            setattr(args, name, scale)
    return args
