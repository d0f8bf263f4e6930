"""The values of 8-bit floating-point codes, as a table of 256 float32.

fp8 is only a storage format here: a GPU needs no fp8 arithmetic to read the cache. The formats are OCP's. E4M3 has bias
7 and no infinities, and all its magnitude bits are set in a NaN. E5M2 is the upper half of an IEEE float16.
"""

from __future__ import annotations

import torch

_tables: dict[tuple[str, torch.device], torch.Tensor] = {}


def fp8_table(kv_cache_dtype: str, device: torch.device) -> torch.Tensor:
    """The exact value of each code of ``fp8_e4m3`` or ``fp8_e5m2``, [256] float32 on ``device``.

    The table is computed on the device and cached. While a CUDA graph is captured the table is not cached, because its
    memory belongs to the graph.
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
