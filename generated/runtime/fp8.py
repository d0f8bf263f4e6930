"""The values of 8-bit floating-point codes, as a table of 256 float32.

fp8 is a storage format here: a card needs no fp8 arithmetic to read such a cache. Formats: OCP 8-bit floating point
(E4M3: bias 7, no infinities, NaN where all magnitude bits are set; E5M2: the upper half of an IEEE float16).
"""

from __future__ import annotations

import torch

_tables: dict[tuple[str, torch.device], torch.Tensor] = {}


def fp8_table(kv_cache_dtype: str, device: torch.device) -> torch.Tensor:
    """[256] float32 on ``device``: the value of each code of ``fp8_e4m3`` or ``fp8_e5m2``; exact.

    Made on the device, and kept unless a CUDA graph is being captured (its memory belongs to the graph).
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
    magnitude = (codes & 0x7F) << 7  # exponent and fraction in a float16's places, 2**8 too small
    values = magnitude.view(torch.float16).float().mul_(256.0)
    values.masked_fill_((codes & 0x7F) == 0x7F, float("nan"))
    return torch.where(codes >= 128, -values, values)
