"""Tables that map each 8-bit floating-point code to its float32 value.

A table lookup converts the bytes of an fp8 KV cache to float32, so the GPU needs no fp8 arithmetic.

The formats are E4M3 and E5M2 of the Open Compute Project (OCP). E4M3 has exponent bias 7 and no infinities. An E4M3
code is NaN if all its exponent and fraction bits are 1. An E5M2 code is the upper byte of an IEEE float16.
"""

from __future__ import annotations

import torch

_tables: dict[tuple[str, torch.device], torch.Tensor] = {}


def fp8_table(kv_cache_dtype: str, device: torch.device) -> torch.Tensor:
    """Return the values of all 256 codes of ``fp8_e4m3`` or ``fp8_e5m2``, as a float32 [256] tensor on ``device``.

    The function computes the table on the device and caches the table. A table that is computed during CUDA graph
    capture is not cached, because the table's memory belongs to the graph.
    """
    table = _tables.get((kv_cache_dtype, device))
    if table is None:
        table = _e4m3(device) if kv_cache_dtype == "fp8_e4m3" else _e5m2(device)
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _tables[kv_cache_dtype, device] = table
    return table


def _e5m2(device: torch.device) -> torch.Tensor:
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    halves = torch.zeros(256, 2, dtype=torch.uint8, device=device)
    halves[:, 1] = codes  # little endian: the code is the high byte
    return halves.view(torch.float16).view(256).float()


def _e4m3(device: torch.device) -> torch.Tensor:
    codes = torch.arange(256, dtype=torch.int16, device=device)
    magnitude = (codes & 0x7F) << 7  # the bits of a float16 whose value is too small by a factor of 2**8
    values = magnitude.view(torch.float16).float().mul_(256.0)
    values.masked_fill_((codes & 0x7F) == 0x7F, float("nan"))
    return torch.where(codes >= 128, -values, values)
