"""Kernel keys: the properties of a call, such as head size, dtype and softcap, that determine which kernels fit.

This module also defines the allowed values of these properties. This module does not import torch, because the
generator runs without torch and also uses this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple


class Key(NamedTuple):
    """The properties of a call that determine which attention kernels fit the call.

    Kernels that differ only in the partition size have the same key. A value of None for softcap, sliding_window or
    modification means that the attention does not use the feature.
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
        """Whether the attention uses no optional feature, such as ALiBi, a softcap or a sliding window."""
        return not any(getattr(self, axis) for axis in FEATURES)

    def __str__(self) -> str:
        return " ".join(f"{axis}={yaml_text(value)}" for axis, value in self._asdict().items())


#: The fields of a ``Key`` that change what the attention computes. The value is None or False without the feature.
FEATURES = ("alibi", "blocksparse", "softcap", "sliding_window", "sinks", "modification")


class CacheKey(NamedTuple):
    """The properties of a ``reshape_and_cache`` call that determine which kernel fits the call."""

    head_size: int
    block_size: int
    dtype: str
    kv_cache_dtype: str

    def __str__(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self._asdict().items())


#: A kernel key of any operator.
AnyKey = Key | CacheKey

#: For each operator, by its name: the type of its kernel keys.
KEYS: Mapping[str, type[Key] | type[CacheKey]] = {"decode": Key, "extend": Key, "cache": CacheKey}

#: For some operators, by their names: the features that none of their kernels can have.
NEVER_BUILT: Mapping[str, tuple[str, ...]] = {"extend": ("blocksparse",)}

KV_ALIASES = {"fp8": "fp8_e4m3"}

#: The allowed values of some axes. ``BUILDABLE`` also has a description of these values for messages. An axis is a
#: field of a key.
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

#: The smallest and the largest allowed softcap.
SOFTCAPS = (1e-3, 1e6)

#: The largest allowed number of tokens in a sliding window, and in a sequence that a kernel with a modification
#: processes. With this limit, expressions of two positions, such as k + q or 2 * k + 1, fit in 32 bits.
MOST_TOKENS = 1 << 30

#: The names of specs, of modifications, of their parameter tensors, and of the package in a wheel must match this
#: pattern.
NAME_FORM = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
#: The largest number of characters in the name of a modification or of a parameter tensor, and a description of the
#: allowed names for messages.
LONGEST_NAME = 24
NAME_WORDS = f"lower-case words, digits and single '_', at most {LONGEST_NAME} characters"


def softcap_allowed(softcap: float | None) -> bool:
    """Whether the generator can build a kernel with this softcap, where None means attention without a softcap."""
    return softcap is None or SOFTCAPS[0] <= softcap <= SOFTCAPS[1]


def window_allowed(window: int | None) -> bool:
    """Whether the generator can build a kernel with this sliding window.

    window: the number of tokens in the window, or None for attention without a window.
    """
    return window is None or 1 <= window <= MOST_TOKENS


def name_allowed(name: str | None) -> bool:
    """Whether an attention modification may have this name, where None means attention without a modification."""
    return name is None or (len(name) <= LONGEST_NAME and NAME_FORM.fullmatch(name) is not None)


def whole_groups(head_size: int, kv_cache_dtype: str) -> bool:
    """Whether the cached K vector of one token and one KV head has a size that is a multiple of 16 bytes."""
    return kv_cache_dtype == "auto" or head_size % 16 == 0


def whole_blocks(partition_size: int, block_size: int) -> bool:
    """Whether a partition of ``partition_size`` tokens consists of whole pages of ``block_size`` tokens."""
    return partition_size % block_size == 0


class Limit(NamedTuple):
    """A condition that a kernel's properties must meet. The generator builds no kernel that breaks the condition.

    axes: the names of the properties, such as head_size.
    holds: a function of the properties' values that returns whether the values meet the condition.
    words: a description of the condition for messages.
    """

    axes: tuple[str, ...]
    holds: Callable[..., bool]
    words: str


#: All conditions on kernels: first those on a single axis, then the conditions on two axes. ``partition_size`` is not a
#: field of a key: it is a property of decode kernels.
LIMITS = (
    *(Limit((axis,), values.__contains__, f"{axis} is {words}") for axis, (values, words) in BUILDABLE.items()),
    Limit(("softcap",), softcap_allowed, "softcap is a number from 0.001 to 1000000, or null"),
    Limit(("sliding_window",), window_allowed, f"sliding_window is from 1 to {MOST_TOKENS}, or null"),
    Limit(("modification",), name_allowed, f"modification is a name of {NAME_WORDS}"),
    Limit(("head_size", "kv_cache_dtype"), whole_groups, "head_size is a multiple of 16 for a cache of 8 bits"),
    Limit(("partition_size", "block_size"), whole_blocks, "partition_size is a multiple of block_size"),
)


def refusals(key: AnyKey, operator: str) -> list[str]:
    """Return a description of each condition that ``key`` breaks for ``operator``.

    The generator can build a kernel with this key only if the result is empty.
    """
    values = key._asdict()
    never = [axis for axis in NEVER_BUILT.get(operator, ()) if values[axis]]
    broken = [
        limit for limit in LIMITS if values.keys() >= set(limit.axes) and not limit.holds(*map(values.get, limit.axes))
    ]
    return [limit.words for limit in broken] + [f"{axis} is false in {operator} kernels" for axis in never]


def own_key(key: Key, operator: str) -> AnyKey:
    """Convert the key of a decode kernel to the key of the ``operator`` kernel for the same attention layers."""
    kind = KEYS[operator]
    return kind(*(getattr(key, axis) for axis in kind._fields))


def in_order(value: object) -> tuple[bool, object]:
    """Return a sort key for the value of one field of a ``Key``. None sorts before all other values."""
    return value is not None, value


def order_of(key: AnyKey) -> tuple[tuple[bool, object], ...]:
    """Return a sort key for ``key``. In each field, None sorts before all other values."""
    return tuple(map(in_order, key))


def yaml_text(value: object) -> str:
    """Format the value of a key's field as in a YAML file, for example ``512``, ``true`` or ``null``."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
