"""Variants: a variant is one kernel of a spec, for one operator. A variant's names are derived from its axis values.

No code parses a name back into axis values. Code that needs the value of an axis reads the variant's field.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pav2gen.family.axes import AXES, slug
from pav2gen.family.modifications.modification import Modification
from pav2gen.runtime.key import FEATURES, CacheKey, Key

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

#: The most characters of a kernel's symbol or of a file name. File systems allow 255. The names of kernels without
#: features have fewer than 100. Only a softcap of many digits together with a long name of a modification comes near
#: the limit.
LONGEST_SYMBOL = 160


class Point(ABC):
    """One kernel of one spec, of any operator. The properties are names, paths and sizes that follow from the axis
    values.

    ``spec`` is the name of the spec, and ``operator`` is the name of the operator.
    """

    operator: ClassVar[str]
    spec: str
    dtype: str
    kv_cache_dtype: str

    @property
    @abstractmethod
    def axes(self) -> dict[str, object]:
        """The kernel's value for each of its axes, by the name of the axis, in the order in which the kernel's name
        states the axes.
        """

    @property
    @abstractmethod
    def slug(self) -> str:
        """A short name of the kernel, such as ``hd256_g6_b16_f16_p512``. It is unique within the spec."""

    @property
    def symbol(self) -> str:
        """A name of the kernel that is unique over all specs. The kernel's CUDA source exports a C function with this
        name.
        """
        return f"pav2_{self.spec}_{self.slug}"

    @property
    def cache_item_bytes(self) -> int:
        """The size of one element of the KV cache, in bytes."""
        return ITEM_BYTES[self.dtype] if self.kv_cache_dtype == "auto" else 1

    @property
    def storage(self) -> str:
        """The dtype of the tensors that hold the KV cache: uint8 for an fp8 cache, int8 for an int8 cache, else the
        query's dtype.
        """
        return {"auto": self.dtype, "int8": "int8"}.get(self.kv_cache_dtype, "uint8")

    @property
    def grain(self) -> int:
        """The number of elements of the KV cache in 16 bytes. vLLM calls this number ``x`` in the shape of its key
        cache: [number of blocks, KV heads, head size / x, block size, x].
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
    """An attention kernel, for decode or extend. Except ``spec`` (the spec's name) and ``own``, each field is the value
    of an axis that a call must match.
    """

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
    #: The spec's definition of the modification that the field ``modification`` names. None if that field is None.
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
    """One decode kernel: an attention kernel for calls with one query token per sequence and for one partition size."""

    operator: ClassVar[str] = "decode"

    partition_size: int = field(kw_only=True)

    @property
    def axes(self) -> dict[str, object]:
        """The kernel's value for every axis, by the name of the axis."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def slug(self) -> str:
        """A short name of the kernel, such as ``hd256_g6_b16_f16_p512``. It is unique within the spec."""
        return slug(self.axes)

    @property
    def pages_per_partition(self) -> int:
        """The number of pages (vLLM: blocks) of the KV cache in one partition."""
        return self.partition_size // self.block_size


@dataclass(frozen=True)
class ExtendVariant(AttentionVariant):
    """One extend kernel: an attention kernel for calls with several query tokens per sequence."""

    operator: ClassVar[str] = "extend"

    @property
    def axes(self) -> dict[str, object]:
        """The kernel's value for each axis that a call must match, by the name of the axis. An extend kernel has no
        partition size.
        """
        return self.key._asdict()

    @property
    def slug(self) -> str:
        """A short name of the kernel, such as ``extend_hd256_g6_b16_f16``. It is unique within the spec."""
        return f"extend_{slug(self.axes)}"


@dataclass(frozen=True)
class CacheVariant(Point):
    """One cache writer: a kernel that writes the K and V of new tokens into a KV cache.

    A cache writer has only the axes that decide the layout of the cache and the type of its elements. A decode kernel
    with the same values for these axes can read the cache.
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
        """The kernel's value for each of its axes, by the name of the axis."""
        return self.key._asdict()

    @property
    def slug(self) -> str:
        """A short name of the kernel, such as ``cache_hd256_b16_f16``. It is unique within the spec."""
        return f"cache_{slug(self.axes)}"


def extenders_of(variants: Iterable[Variant]) -> tuple[ExtendVariant, ...]:
    """The extend kernels that a spec builds if its decode kernels are ``variants``. They are in the order of
    ``variants``.

    Decode kernels that differ only in partition size share one extend kernel.
    """
    made = (ExtendVariant(each.spec, *each.key, own=each.own) for each in variants)
    return tuple(dict.fromkeys(made))


def writers_of(variants: Iterable[Variant]) -> tuple[CacheVariant, ...]:
    """The cache writers for the KV caches that the decode kernels ``variants`` read, in the order of ``variants``.
    Decode kernels with the same values for the axes of ``CacheKey`` share one cache writer.
    """
    fields = ("spec", *CacheKey._fields)
    return tuple(dict.fromkeys(CacheVariant(*(getattr(each, name) for name in fields)) for each in variants))


#: Name of an operator -> a function that takes a spec's decode kernels and returns the spec's kernels for this
#: operator. The keys are the names of all operators.
OPERATORS: Mapping[str, Callable[[Iterable[Variant]], tuple[Point, ...]]] = {
    "decode": tuple,
    "extend": extenders_of,
    "cache": writers_of,
}


def expand(name: str, axes: Mapping[str, Sequence[object]]) -> tuple[Variant, ...]:
    """The decode kernels for all combinations of the axis values in ``axes``. The last axis in ``AXES`` varies
    fastest.

    name: the name of the spec.
    axes: the values of each axis, by the name of the axis. An axis that is not in ``axes`` has its default values.
    """
    values = itertools.product(*(axes.get(axis, known.default or ()) for axis, known in AXES.items()))
    return tuple(Variant(name, **dict(zip(AXES, point, strict=True))) for point in values)  # type: ignore[arg-type]
