"""The settings of a simulation session: the order in which threads run, and how strict the checks are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

CHOICES = {
    "lane_order": ("ascending", "descending", "random"),
    "block_order": ("ascending", "descending", "random"),
    "warp_order": ("collective", "syncwarp", "syncthreads"),
}

#: The smallest stack of a thread, in bytes: one page.
LEAST_STACK_BYTES = 4096
#: The largest stack of a thread, in bytes. A block of 1,024 threads then takes a terabyte of address space.
MOST_STACK_BYTES = 1 << 30
#: The longest time limit, in seconds: a year.
MOST_SECONDS = 366 * 24 * 3600


@dataclass(frozen=True)
class Policy:
    """The order in which simulated threads run, and how strict the checks are.

    `lane_order`, `block_order`: the order of a warp's lanes and of a grid's blocks: "ascending", "descending" or
    "random". A random order depends only on `seed`.

    `warp_order`: which warp-wide calls order the memory accesses of a warp's lanes. `__syncthreads` always does.
    "collective": every warp-wide call, including shuffles and votes. "syncwarp": only `__syncwarp`, as CUDA promises.
    "syncthreads": no warp-wide call, because on some GPUs `__syncwarp` does not order memory accesses reliably.

    `strict_exit`: report a barrier or a warp-wide call that waits for a thread that has already returned. Hardware may
    go on without that thread.

    `full_mask_32`: at warp size 64, treat the lane mask 0xffffffff as all 64 lanes.

    `integer_overflow`: report the overflow of signed integers (checked builds only).

    `poison`: fill shared memory with 0xff bytes (a NaN in every floating-point format) at the start of every block.

    `stack_bytes`: size of the stack of each thread, in bytes. `shared_limit`: largest shared memory of a block, in
    bytes.

    `time_limit`: seconds after which a launch is stopped. 0 means no limit.
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
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if not 0 <= self.time_limit <= MOST_SECONDS:
            raise ValueError(f"time_limit must be a number of seconds, or 0 for no limit, not {self.time_limit}")
        if self.stack_bytes < LEAST_STACK_BYTES:
            raise ValueError(f"stack_bytes must be at least {LEAST_STACK_BYTES}, not {self.stack_bytes}")
        if self.stack_bytes > MOST_STACK_BYTES:
            raise ValueError(f"stack_bytes must be at most {MOST_STACK_BYTES}, not {self.stack_bytes}")
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise ValueError(f"seed must be an integer of 64 bits, not {self.seed}")

    def settings(self) -> Iterator[tuple[str, int]]:
        """Each setting as (name, integer value), in the form that the runtime's C interface takes."""
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "time_limit":
                yield "time_limit_ms", round(value * 1000)
            else:
                yield f.name, CHOICES[f.name].index(value) if f.name in CHOICES else int(value)
