"""The error that a compressed KV cache gives to the output of attention, against float64, in percent.

    python benches/cache_error.py

Prints the table of docs/compressed_caches.md: the root mean square of ||out - t|| / ||t|| over queries and heads, with
t the attention over the keys and values as they were before they were stored. All arithmetic but the rounding to the
cache is float64. Needs torch, no GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from pav2gen.runtime.testing.oracle import decode, nearest_codes
from pav2gen.runtime.writer.calibration import kv_scales

HEADS, TOKENS, SIZE, QUERIES = 8, 512, 128, 32

#: Standard deviation of the queries: with N(0, 1) keys the scores have the same, and a few tokens dominate a softmax.
QUERY_DEVIATION = 2.0

#: Magnitudes of keys and values differ by head in a trained model.
HEAD_MAGNITUDES = torch.logspace(-1, 0.5, HEADS, base=10.0)

DTYPES = ("fp8_e4m3", "fp8_e5m2", "int8")
SCALES = ("scale 1", "one scale", "scale per head")

Rows = tuple[torch.Tensor, torch.Tensor]  # keys and values, [tokens, heads, size] float32


def normal(generator: torch.Generator) -> Rows:
    """N(0, 1) keys and values, alike in all heads."""
    keys, values = torch.randn(2, TOKENS, HEADS, SIZE, generator=generator)
    return keys, values


def outliers(generator: torch.Generator) -> Rows:
    """Four channels of each head are 12 times as large as the others, in the keys."""
    keys, values = normal(generator)
    for head in range(HEADS):
        keys[:, head, torch.randperm(SIZE, generator=generator)[:4]] *= 12
    return keys, values


def rotated(generator: torch.Generator) -> Rows:
    """Keys with a mean in each channel, some of it large, rotated by RoPE; heads of different magnitudes."""
    keys, values = normal(generator)
    means = torch.randn(HEADS, SIZE, generator=generator) * torch.linspace(0, 2, SIZE).exp()
    angles = torch.arange(TOKENS)[:, None, None] * 10000.0 ** (-torch.arange(SIZE // 2) * 2 / SIZE)
    first, second = (keys + means).chunk(2, dim=-1)
    turned = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    magnitudes = HEAD_MAGNITUDES[:, None]
    return torch.cat(turned, -1) / 3 * magnitudes, values * magnitudes


KEYS: dict[str, Callable[[torch.Generator], Rows]] = {
    "N(0, 1)": normal,
    "outlier channels": outliers,
    "RoPE, heads of different magnitude": rotated,
}


def attention(query: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """[queries, heads, size] float64; query alike."""
    keys, values = (each.double() for each in rows)
    scores = torch.einsum("qhd,thd->hqt", query, keys) * SIZE**-0.5
    return torch.einsum("hqt,thd->qhd", scores.softmax(-1), values)


def stored(rows: Rows, dtype: str, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What a cache of ``dtype`` gives back of ``rows``, float64; ``kind`` is one of ``SCALES``."""
    read = []
    for each, scale in zip(rows, kv_scales(*rows, dtype)):
        by_head = dict(zip(SCALES, (torch.ones_like(scale), scale.max().expand(HEADS), scale)))[kind][:, None]
        read.append(decode(nearest_codes((each.half().float() / by_head).double(), dtype), dtype, by_head.double()))
    return read[0], read[1]


@functools.cache
def errors(make: Callable[[torch.Generator], Rows]) -> dict[tuple[str, str], float]:
    """Percent of error by (dtype, scales)."""
    generator = torch.Generator().manual_seed(0)
    rows = make(generator)
    query = QUERY_DEVIATION * torch.randn(QUERIES, HEADS, SIZE, generator=generator).double()
    truth = attention(query, rows)

    def percent(read: tuple[torch.Tensor, torch.Tensor]) -> float:
        off = (attention(query, read) - truth).norm(dim=-1) / truth.norm(dim=-1)
        return 100 * float(off.square().mean().sqrt())

    found = {("auto", ""): percent((rows[0].half(), rows[1].half()))}
    for dtype in DTYPES:
        for kind in SCALES:
            if (dtype, kind) != ("int8", SCALES[0]):  # whole numbers alone
                found[dtype, kind] = percent(stored(rows, dtype, kind))
    return found


def table() -> Iterator[str]:
    """The lines of the table, in Markdown."""
    found = {name: errors(make) for name, make in KEYS.items()}
    columns = list(next(iter(found.values())))
    headings = ("float16" if dtype == "auto" else f"{dtype}, {kind}" for dtype, kind in columns)
    yield f"| keys | {' | '.join(headings)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, each in found.items():
        yield f"| {name} | {' | '.join(f'{each[column]:.2g}' for column in columns)} |"


if __name__ == "__main__":
    print("\n".join(table()))
