"""The settings of a session: the order in which threads run, and how strict the checks are."""

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
    """The order in which threads run, and how strict the checks are.

    `lane_order`, `block_order`: "ascending", "descending" or "random". A random order depends only on `seed`.

    `warp_order`: which calls order the memory accesses of a warp's lanes, besides `__syncthreads`. "collective": every
    warp-wide call, including shuffles and votes. "syncwarp": only `__syncwarp`, as CUDA promises. "syncthreads": none,
    because on some cards `__syncwarp` is not a reliable fence.

    `strict_exit`: a barrier, or a mask of a warp-wide call, that includes a thread that has returned is a finding.
    Hardware may go on without that thread.

    `full_mask_32`: at warp size 64 the mask 0xffffffff means all 64 lanes.

    `integer_overflow`: the overflow of a signed integer is a finding (checked build).

    `poison`: at the start of every block, shared memory is filled with 0xff bytes (NaN in every floating point format).

    `stack_bytes`: bytes for the local variables of one thread. `shared_limit`: bytes of shared memory that a block may
    have.

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
        """The settings' names and integer values, as the C interface of the runtime takes them."""
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "time_limit":
                yield "time_limit_ms", round(value * 1000)
            else:
                yield f.name, CHOICES[f.name].index(value) if f.name in CHOICES else int(value)
