"""How many tokens fit on a card of 32 GB beside the weights, for the committed specs and each KV cache dtype.

    python benches/cache_memory.py

Prints the table of docs/compressed_caches.md. Needs no GPU and no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pav2gen.family.spec import RankShape, Spec
from pav2gen.family.variant import ITEM_BYTES
from pav2gen.reading.spec_file import load

SPECS = Path(__file__).resolve().parents[1] / "specs"

#: Bytes of memory that a BI-V100 reports, and the share of them that vLLM uses (--gpu-memory-utilization).
CARD_BYTES, SHARE = 34_057_748_480, 0.9

#: Of a rank whose weights leave less than this, no table speaks: vLLM needs room for activations too.
LEAST_ROOM = 1 << 30


class Sizes(NamedTuple):
    """What a spec does not say of its model: parameters in billions, and the layers that hold a paged cache."""

    parameters: float
    layers: int


#: From the model cards and the config.json of each model.
MODELS = {
    "baichuan_13b": Sizes(13.26, 40),
    "llama2_7b": Sizes(6.74, 32),
    "llama3_70b": Sizes(70.55, 80),
    "llama3_8b": Sizes(8.03, 32),
    "phi2": Sizes(2.78, 32),
    "qwen25_05b": Sizes(0.49, 24),
    "qwen25_7b": Sizes(7.62, 28),
    "qwen36": Sizes(27.0, 16),
    "qwen36_35b_a3b": Sizes(35.0, 10),
    "qwen3_14b": Sizes(14.8, 40),
    "qwen3_235b": Sizes(235.0, 94),
}


class Line(NamedTuple):
    """One rank of a model: bytes of its weights, and of K and V of a token, over all its layers, by dtype."""

    spec: Spec
    rank: RankShape
    weights: int
    token_bytes: int
    compressed_bytes: int

    @property
    def room(self) -> int:
        """Bytes of the card that are left for the cache."""
        return int(CARD_BYTES * SHARE) - self.weights


def line(spec: Spec, rank: RankShape) -> Line:
    """The sizes of a rank. The weights have the first dtype of the spec."""
    sizes, item = MODELS[spec.name], ITEM_BYTES[str(spec.axes["dtype"][0])]
    values = 2 * sizes.layers * rank.num_kv_heads * int(str(spec.axes["head_size"][0]))
    weights = int(sizes.parameters * 1e9 * item) // rank.tensor_parallel
    return Line(spec, rank, weights, values * item, values)


def smallest(spec: Spec) -> Line | None:
    """The smallest number of ranks of ``spec`` whose weights leave room for a cache; None if there is none."""
    lines = (line(spec, rank) for rank in spec.model.ranks())
    return next((each for each in lines if each.room >= LEAST_ROOM), None)


def table() -> Iterator[str]:
    """The lines of the table, in Markdown."""
    yield "| spec | ranks | weights of each, GiB | KiB of a token | tokens, auto | tokens, 8 bits | longest sequence |"
    yield "|---|---|---|---|---|---|---|"
    for path in sorted(SPECS.glob("*.yaml")):
        spec = load(path)
        if spec.name not in MODELS:
            continue
        found, longest = smallest(spec), f"{spec.model.max_seq_len:,}"
        if found is None:
            most = line(spec, spec.model.ranks()[-1])
            ranks, weights = most.rank.tensor_parallel, most.weights / 2**30
            yield f"| {spec.name} | {ranks} | {weights:.1f} | {most.token_bytes / 1024:g} | 0 | 0 | {longest} |"
            continue
        tokens = [f"{found.room // each:,}" for each in (found.token_bytes, found.compressed_bytes)]
        sizes = f"{found.weights / 2**30:.1f} | {found.token_bytes / 1024:g}"
        yield f"| {spec.name} | {found.rank.tensor_parallel} | {sizes} | {' | '.join(tokens)} | {longest} |"


if __name__ == "__main__":
    print("\n".join(table()))
