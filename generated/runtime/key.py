"""Keys: the properties of a call that a kernel must match, and the limits on keys that a kernel can be generated for.

This module is pure Python, because the generator uses it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple


class Key(NamedTuple):
    """The properties of a call that a kernel must match. Kernels with several partition sizes may have the same key.

    softcap, sliding_window, modification: None means attention without this feature.
    """

    head_size: int
    gqa_ratio: int
    block_size: int
    dtype: str
    kv_cache_dtype: str
    alibi: bool
    blocksparse: bool
    softcap: float | None = None
    sliding_window: int | None = None
    sinks: bool = False
    modification: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the attention has none of the features: no ALiBi, no softcap and so on."""
        return not any(getattr(self, axis) for axis in FEATURES)

    def __str__(self) -> str:
        return " ".join(f"{axis}={yaml_text(value)}" for axis, value in self._asdict().items())


#: The fields of a key that change the attention itself. A feature that a call does not use is None or False.
FEATURES = ("alibi", "blocksparse", "softcap", "sliding_window", "sinks", "modification")


class CacheKey(NamedTuple):
    """The properties of a call of ``reshape_and_cache`` that a cache writer must match."""

    head_size: int
    block_size: int
    dtype: str
    kv_cache_dtype: str

    def __str__(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self._asdict().items())


#: A key of any operator.
AnyKey = Key | CacheKey

#: Operator -> the type of its keys.
KEYS: Mapping[str, type[Key] | type[CacheKey]] = {"decode": Key, "extend": Key, "cache": CacheKey}

#: Operator -> the features that none of its kernels has.
NEVER_BUILT: Mapping[str, tuple[str, ...]] = {"extend": ("blocksparse",)}

KV_ALIASES = {"fp8": "fp8_e4m3"}

#: For each axis, the values that a kernel can be generated for, and their description.
HEAD_SIZES = (*range(32, 257, 8), 512)
GQA_RATIOS = range(1, 129)
BLOCK_SIZES = (8, 16, 32, 64, 128)
BUILDABLE: Mapping[str, tuple[Collection[object], str]] = {
    "head_size": (HEAD_SIZES, "a multiple of 8 from 32 to 256, or 512"),
    "gqa_ratio": (GQA_RATIOS, "from 1 to 128"),
    "block_size": (BLOCK_SIZES, "8, 16, 32, 64 or 128"),
    "dtype": (("float16", "bfloat16", "float32"), "float16, bfloat16 or float32"),
    "kv_cache_dtype": (("auto", "fp8_e4m3", "fp8_e5m2", "int8"), "auto, fp8_e4m3, fp8_e5m2 or int8"),
}

#: The smallest and the largest softcap.
SOFTCAPS = (1e-3, 1e6)

#: The most tokens of a window, and of a sequence in a kernel with a modification. k + q and 2 * k + 1 fit in 32 bits.
MOST_TOKENS = 1 << 30

#: The form of the name of a spec, a modification, a tensor, and of a wheel's package.
NAME_FORM = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
#: The most characters of the name of a modification and of a tensor, and their names in words.
LONGEST_NAME = 24
NAME_WORDS = f"lower-case words, digits and single '_', at most {LONGEST_NAME} characters"


def softcap_allowed(softcap: float | None) -> bool:
    """Whether a kernel can have this softcap."""
    return softcap is None or SOFTCAPS[0] <= softcap <= SOFTCAPS[1]


def window_allowed(window: int | None) -> bool:
    """Whether a kernel can have this sliding window, in tokens."""
    return window is None or 1 <= window <= MOST_TOKENS


def name_allowed(name: str | None) -> bool:
    """Whether a modification can have this name."""
    return name is None or (len(name) <= LONGEST_NAME and NAME_FORM.fullmatch(name) is not None)


def whole_groups(head_size: int, kv_cache_dtype: str) -> bool:
    """Whether a head is whole groups of 16 bytes in the cache."""
    return kv_cache_dtype == "auto" or head_size % 16 == 0


def whole_blocks(partition_size: int, block_size: int) -> bool:
    """Whether a partition is whole pages."""
    return partition_size % block_size == 0


class Limit(NamedTuple):
    """A condition on the values of some axes, without which no kernel can be generated, and the condition in words."""

    axes: tuple[str, ...]
    holds: Callable[..., bool]
    words: str


#: The conditions on one axis, then those on two axes. ``partition_size`` is an axis of decode kernels, not of keys.
LIMITS = (
    *(Limit((axis,), values.__contains__, f"{axis} is {words}") for axis, (values, words) in BUILDABLE.items()),
    Limit(("softcap",), softcap_allowed, "softcap is a number from 0.001 to 1000000, or null"),
    Limit(("sliding_window",), window_allowed, f"sliding_window is from 1 to {MOST_TOKENS}, or null"),
    Limit(("modification",), name_allowed, f"modification is a name of {NAME_WORDS}"),
    Limit(("head_size", "kv_cache_dtype"), whole_groups, "head_size is a multiple of 16 for a cache of 8 bits"),
    Limit(("partition_size", "block_size"), whole_blocks, "partition_size is a multiple of block_size"),
)


def refusals(key: AnyKey, operator: str) -> list[str]:
    """The conditions that ``key`` breaks. If there are any, no kernel of ``operator`` can be generated for it."""
    values = key._asdict()
    never = [axis for axis in NEVER_BUILT.get(operator, ()) if values[axis]]
    broken = [
        limit for limit in LIMITS if values.keys() >= set(limit.axes) and not limit.holds(*map(values.get, limit.axes))
    ]
    return [limit.words for limit in broken] + [f"{axis} is false in {operator} kernels" for axis in never]


def own_key(key: Key, operator: str) -> AnyKey:
    """The key that a kernel of ``operator`` needs to serve the same layers as a decode kernel of ``key``."""
    kind = KEYS[operator]
    return kind(*(getattr(key, axis) for axis in kind._fields))


def in_order(value: object) -> tuple[bool, object]:
    """A sort key for the values of one field of a ``Key``. None comes first."""
    return value is not None, value


def order_of(key: AnyKey) -> tuple[tuple[bool, object], ...]:
    """A sort key for a ``Key`` or ``CacheKey``."""
    return tuple(map(in_order, key))


def yaml_text(value: object) -> str:
    """A value of an axis as a spec writes it: ``512``, ``true``, ``null``."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
