"""The choices of a session: the order of execution, and the strictness of the checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

CHOICES = {
    "lane_order": ("ascending", "descending", "random"),
    "block_order": ("ascending", "descending", "random"),
    "warp_order": ("collective", "syncwarp", "syncthreads"),
}

#: The fewest bytes on which a thread runs: a page, which is what stacks are made of.
LEAST_STACK_BYTES = 4096
#: The most: a block of 1,024 threads then takes a terabyte of addresses.
MOST_STACK_BYTES = 1 << 30
#: The longest time limit, in seconds: a year.
MOST_SECONDS = 366 * 24 * 3600


@dataclass(frozen=True)
class Policy:
    """How kernels are run and judged.

    `lane_order`, `block_order`: "ascending", "descending" or "random", which is repeatable by `seed`.

    `warp_order`: what orders the memory accesses of a warp's lanes. "collective": any collective call of theirs, a
    shuffle or a vote too. "syncwarp" (what CUDA promises): only `__syncwarp` among them. "syncthreads": only
    `__syncthreads` (on some cards `__syncwarp` is not a reliable fence). `__syncthreads` always orders them.

    `strict_exit`: a thread that has returned is missed at barriers and in masks; hardware may go on without it.

    `full_mask_32`: at warp size 64 the mask 0xffffffff means all 64 lanes.

    `integer_overflow`: the overflow of a signed integer is a finding (checked build).

    `poison`: shared memory starts every block as 0xff bytes, which are NaN in every floating point format.

    `stack_bytes`: for the local variables of one thread. `shared_limit`: bytes of shared memory a block may have.

    `time_limit`: seconds after which a launch is stopped; 0 is none.
    """

    lane_order: str = "ascending"
    block_order: str = "ascending"
    seed: int = 0
    warp_order: str = "syncwarp"
    strict_exit: bool = True
    full_mask_32: bool = True
    integer_overflow: bool = True
    poison: bool = True
    stack_bytes: int = 128 << 10
    shared_limit: int = 128 << 10
    time_limit: float = 0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if not 0 <= self.time_limit <= MOST_SECONDS:
            raise ValueError(f"time_limit is a number of seconds, or 0 for none, not {self.time_limit}")
        if self.stack_bytes < LEAST_STACK_BYTES:
            raise ValueError(f"stack_bytes is at least {LEAST_STACK_BYTES}, not {self.stack_bytes}")
        if self.stack_bytes > MOST_STACK_BYTES:
            raise ValueError(f"stack_bytes is at most {MOST_STACK_BYTES}, not {self.stack_bytes}")
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise ValueError(f"seed is a number of 64 bits, not {self.seed}")

    def settings(self) -> Iterator[tuple[str, int]]:
        """Names and values as the runtime takes them."""
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "time_limit":
                yield "time_limit_ms", round(value * 1000)
            else:
                yield f.name, CHOICES[f.name].index(value) if f.name in CHOICES else int(value)
