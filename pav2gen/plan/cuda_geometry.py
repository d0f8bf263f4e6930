"""The geometry of a CUDA thread block: how its threads share the work."""

from __future__ import annotations

from dataclasses import dataclass

#: Lanes of the widest warp. A layout that keeps warps of 64 lanes busy also keeps warps of 32 lanes busy.
WIDEST_WARP = 64


@dataclass(frozen=True)
class Geometry:
    """How the threads of a block share the work.

    threads: threads of a block.
    heads: query heads that a block computes.
    step: tokens that a block processes between two barriers; their scores are in shared memory together.
    runs: runs of consecutive tokens that a warp scores together.
    key_words: 32-bit words of a load of keys.
    value_words: 32-bit words of a load of values.
    row_lanes: threads side by side in a row of values. A row is one element of the head over the tokens of a page.
    """

    threads: int
    heads: int
    step: int
    runs: int
    key_words: int
    value_words: int
    row_lanes: int
