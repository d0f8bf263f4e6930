"""The classes of variants. A variant is one kernel of a spec, for one operator.

The names and paths of a kernel are made from its axis values. No code parses a name back into axis values.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pav2gen.family.axes import AXES, slug
from pav2gen.family.modifications.modification import Modification
from pav2gen.runtime.choice.key import FEATURES, CacheKey, Key

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

#: The largest allowed number of characters in a kernel's symbol or in the name of a generated file.
LONGEST_SYMBOL = 160


class Point(ABC):
    """The base class of all variants. A variant is one kernel of one spec, for one operator.

    operator: the name of the operator, such as ``decode``.
    spec: the name of the spec.
    dtype: the dtype of the query, or of the keys and values that a cache writer gets.
    kv_cache_dtype: the type of the KV cache by vLLM's names, such as ``fp8_e4m3``; ``auto`` is the same type as
    ``dtype``.
    """

    operator: ClassVar[str]
    spec: str
    dtype: str
    kv_cache_dtype: str

    @property
    @abstractmethod
    def axes(self) -> dict[str, object]:
        """The kernel's value for each of its axes: a dict from the name of the axis, in the order of ``AXES``."""

    @property
    @abstractmethod
    def slug(self) -> str:
        """A short name of the kernel, such as ``hd256_g6_b16_f16_p512``. It is unique within the spec."""

    @property
    def symbol(self) -> str:
        """The name of the C function that the kernel's CUDA source exports. The symbol is unique over all specs."""
        return f"pav2_{self.spec}_{self.slug}"

    @property
    def cache_item_bytes(self) -> int:
        """The size of one element of the KV cache, in bytes."""
        return ITEM_BYTES[self.dtype] if self.kv_cache_dtype == "auto" else 1

    @property
    def storage(self) -> str:
        """The dtype of the KV cache's tensors: uint8 for fp8 caches, int8 for int8 caches, else the field ``dtype``."""
        return {"auto": self.dtype, "int8": "int8"}.get(self.kv_cache_dtype, "uint8")

    @property
    def grain(self) -> int:
        """The number of elements of the KV cache in 16 bytes. vLLM calls it ``x`` in the shape of its key cache.

        This shape is [number of blocks, KV heads, head size / x, block size, x].
        """
        return 16 // self.cache_item_bytes

    @property
    def torch_path(self) -> str:
        """The path of the PyTorch kernel's file, relative to the generated package."""
        return f"{self.spec}/torch_kernels/{self.slug}.py"

    @property
    def cuda_path(self) -> str:
        """The path of the kernel's CUDA source, relative to the generated package."""
        return f"{self.spec}/cuda_kernels/{self.slug}.cu"

    @property
    def test_path(self) -> str:
        """The path of the module with the kernel's tests, relative to the generated package."""
        return f"{self.spec}/tests/test_{self.spec}_{self.slug}.py"


@dataclass(frozen=True)
class AttentionVariant(Point):
    """One attention kernel, for decode or extend: its spec's name, and its values of the axes that a call decides."""

    spec: str
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
    #: The spec's definition of the modification that ``modification`` names, or None if ``modification`` is None.
    own: Modification | None = field(default=None, compare=False, repr=False)

    @property
    def kv_token_bytes(self) -> int:
        """The size in bytes of the key and the value of one token in the KV cache, for one KV head."""
        return 2 * self.head_size * self.cache_item_bytes

    @property
    def key(self) -> Key:
        """The axis values that a call must have to use this kernel."""
        return Key(*(getattr(self, axis) for axis in Key._fields))

    @property
    def features(self) -> tuple[str, ...]:
        """The kernel's features in words, such as "softcap 50" or "ALiBi". Empty for plain attention."""
        words = (AXES[axis].title(getattr(self, axis)) for axis in FEATURES)
        return tuple(word for word in words if word)


@dataclass(frozen=True)
class Variant(AttentionVariant):
    """One decode kernel.

    A decode kernel serves calls with one query token per sequence, and has a fixed partition size.
    """

    operator: ClassVar[str] = "decode"

    partition_size: int = field(kw_only=True)

    @property
    def axes(self) -> dict[str, object]:
        """A dict from the name of every axis to the kernel's value."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def slug(self) -> str:
        """A short name of the kernel, such as ``hd256_g6_b16_f16_p512``. It is unique within the spec."""
        return slug(self.axes)

    @property
    def pages_per_partition(self) -> int:
        """The number of pages in one partition."""
        return self.partition_size // self.block_size


@dataclass(frozen=True)
class ExtendVariant(AttentionVariant):
    """One extend kernel. An extend kernel serves calls with several query tokens per sequence."""

    operator: ClassVar[str] = "extend"

    @property
    def axes(self) -> dict[str, object]:
        """A dict from the name of every axis, except ``partition_size``, to the kernel's value."""
        return self.key._asdict()

    @property
    def slug(self) -> str:
        """A short name of the kernel, such as ``extend_hd256_g6_b16_f16``. It is unique within the spec."""
        return f"extend_{slug(self.axes)}"


@dataclass(frozen=True)
class CacheVariant(Point):
    """One cache writer: a kernel that writes the keys and values of new tokens into a KV cache.

    The axes of a cache writer decide the layout of the cache and the type of its elements.
    """

    operator: ClassVar[str] = "cache"

    spec: str
    head_size: int
    block_size: int
    dtype: str
    kv_cache_dtype: str

    @property
    def key(self) -> CacheKey:
        """The axis values that a call of ``reshape_and_cache`` must have to use this kernel."""
        return CacheKey(*(getattr(self, axis) for axis in CacheKey._fields))

    @property
    def axes(self) -> dict[str, object]:
        """A dict from the name of each axis of ``CacheKey`` to the kernel's value."""
        return self.key._asdict()

    @property
    def slug(self) -> str:
        """A short name of the kernel, such as ``cache_hd256_b16_f16``. It is unique within the spec."""
        return f"cache_{slug(self.axes)}"


def extenders_of(variants: Iterable[Variant]) -> tuple[ExtendVariant, ...]:
    """Return the extend kernels for the decode kernels ``variants``, in the same order.

    Decode kernels that differ only in partition size share one extend kernel.
    """
    made = (ExtendVariant(each.spec, *each.key, own=each.own) for each in variants)
    return tuple(dict.fromkeys(made))


def writers_of(variants: Iterable[Variant]) -> tuple[CacheVariant, ...]:
    """Return the writers of the KV caches that the decode kernels ``variants`` read, in the same order.

    Decode kernels that read the same kind of cache (the same values for the axes of ``CacheKey``) share one cache
    writer.
    """
    fields = ("spec", *CacheKey._fields)
    return tuple(dict.fromkeys(CacheVariant(*(getattr(each, name) for name in fields)) for each in variants))


#: Maps the name of each operator to a function that takes a spec's decode kernels and returns the spec's kernels for
#: the operator.
OPERATORS: Mapping[str, Callable[[Iterable[Variant]], tuple[Point, ...]]] = {
    "decode": tuple,
    "extend": extenders_of,
    "cache": writers_of,
}


def expand(name: str, axes: Mapping[str, Sequence[object]]) -> tuple[Variant, ...]:
    """Return one decode kernel for each combination of the axis values in ``axes``.

    The last axis in ``AXES`` varies fastest.

    name: the name of the spec.
    axes: maps the name of each axis to its values. An axis that is missing has its default values.
    """
    values = itertools.product(*(axes.get(axis, known.default or ()) for axis, known in AXES.items()))
    return tuple(Variant(name, **dict(zip(AXES, point, strict=True))) for point in values)  # type: ignore[arg-type]
