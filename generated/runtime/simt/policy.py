"""The settings of a simulation: the order in which threads run, and the strictness of the checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

CHOICES = {
    "lane_order": ("ascending", "descending", "random"),
    "block_order": ("ascending", "descending", "random"),
    "warp_order": ("collective", "syncwarp", "syncthreads"),
}

#: The smallest size that the stack of a simulated thread can have, in bytes: one page of memory.
LEAST_STACK_BYTES = 4096
#: The largest size that the stack of a simulated thread can have, in bytes. With it, the stacks of a thread block of
#: 1,024 threads take a terabyte of address space.
MOST_STACK_BYTES = 1 << 30
#: The longest time limit that can be set for a launch, in seconds: a year.
MOST_SECONDS = 366 * 24 * 3600


@dataclass(frozen=True)
class Policy:
    """The settings of a `Session`: the order in which simulated threads run, and the strictness of the checks.

    `lane_order`: the order in which the lanes of a warp run, which is "ascending", "descending" or "random".
    `block_order`: the order in which the thread blocks of a grid run, which is "ascending", "descending" or "random".
    `seed`: the seed of the random lane and block orders. Equal seeds give equal orders.

    `warp_order`: which warp-wide calls the checks accept as ordering the memory accesses of a warp's lanes. With
    "collective", the checks accept every warp-wide call, including shuffles and votes. With "syncwarp", the checks
    accept only `__syncwarp`, as CUDA promises. With "syncthreads", the checks accept no warp-wide call, because
    `__syncwarp` does not order memory accesses reliably on some GPUs. The checks accept `__syncthreads` with all three
    settings.

    `strict_exit`: whether to report a barrier or a warp-wide call that waits for a thread that has already returned.
    Real GPUs may continue without the returned thread.

    `full_mask_32`: whether the lane mask 0xffffffff means all 64 lanes of a warp at warp size 64.
    `integer_overflow`: whether checked builds report the overflow of signed integers.
    `poison`: whether to fill shared memory with 0xff bytes (a NaN in every floating-point format) before each thread
    block.
    `stack_bytes`: the size of the stack of each simulated thread, in bytes.
    `shared_limit`: the largest shared memory that a thread block may use, in bytes.
    `time_limit`: the time in seconds after which a kernel launch is stopped, or 0 for no limit.
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
        """Yield each setting as a tuple (name, integer value) for the C function `simt_set`."""
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "time_limit":
                yield "time_limit_ms", round(value * 1000)
            else:
                yield f.name, CHOICES[f.name].index(value) if f.name in CHOICES else int(value)
