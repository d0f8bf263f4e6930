"""Variants: a variant is one kernel of a spec, for one operator. The kernel's names are derived from its axis values.

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

#: The most characters of a symbol or a file name. File systems allow 255. Names of plain kernels have fewer than 100.
#: Only a softcap of many digits together with a long name of a modification comes near the limit.
LONGEST_SYMBOL = 160


class Point(ABC):
    """One kernel of one spec, for any operator. The properties are names and sizes that follow from the axis values."""

    operator: ClassVar[str]
    spec: str
    dtype: str
    kv_cache_dtype: str

    @property
    @abstractmethod
    def axes(self) -> dict[str, object]:
        """The value of each axis of the kernel, in the order in which the kernel's name states them."""

    @property
    @abstractmethod
    def slug(self) -> str:
        """A short name of the kernel, unique within the spec."""

    @property
    def symbol(self) -> str:
        """A name of the kernel that is unique over all specs. The CUDA source exports a C function with this name."""
        return f"pav2_{self.spec}_{self.slug}"

    @property
    def cache_item_bytes(self) -> int:
        """Bytes of one element of the KV cache."""
        return ITEM_BYTES[self.dtype] if self.kv_cache_dtype == "auto" else 1

    @property
    def storage(self) -> str:
        """The dtype of the KV cache's tensors: uint8 for an fp8 cache, int8 for an int8 cache, else the query's
        dtype.
        """
        return {"auto": self.dtype, "int8": "int8"}.get(self.kv_cache_dtype, "uint8")

    @property
    def grain(self) -> int:
        """The number of cache elements in 16 bytes: ``x`` in vLLM's key cache layout [blocks, kv heads, head/x, block,
        x].
        """
        return 16 // self.cache_item_bytes

    @property
    def torch_path(self) -> str:
        """The path of the PyTorch kernel, relative to the generated package."""
        return f"{self.spec}/torch_kernels/{self.slug}.py"

    @property
    def cuda_path(self) -> str:
        """The path of the CUDA source, relative to the generated package."""
        return f"{self.spec}/cuda_kernels/{self.slug}.cu"

    @property
    def test_path(self) -> str:
        """The path of the test module, relative to the generated package."""
        return f"{self.spec}/tests/test_{self.spec}_{self.slug}.py"


@dataclass(frozen=True)
class AttentionVariant(Point):
    """An attention kernel, for decode or extend. The fields are the axes that a call must match, and their values."""

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
    #: The spec's definition of the modification that ``modification`` names.
    own: Modification | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> Key:
        """The values that a call must match to use this kernel."""
        return Key(*(getattr(self, axis) for axis in Key._fields))

    @property
    def features(self) -> tuple[str, ...]:
        """The optional features of the kernel in words, such as "softcap 50" or "ALiBi"."""
        words = (AXES[axis].title(getattr(self, axis)) for axis in FEATURES)
        return tuple(word for word in words if word)


@dataclass(frozen=True)
class Variant(AttentionVariant):
    """One decode kernel: an attention kernel for one query token per sequence, with a partition size."""

    operator: ClassVar[str] = "decode"

    partition_size: int = field(kw_only=True)

    @property
    def axes(self) -> dict[str, object]:
        """The kernel's value on every axis."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def slug(self) -> str:
        """A short name, unique within the spec: ``hd256_g6_b16_f16_p512``."""
        return slug(self.axes)

    @property
    def pages_per_partition(self) -> int:
        """The number of pages (vLLM: blocks) of the KV cache in one partition."""
        return self.partition_size // self.block_size


@dataclass(frozen=True)
class ExtendVariant(AttentionVariant):
    """One extend kernel, which takes several query tokens per sequence."""

    operator: ClassVar[str] = "extend"

    @property
    def axes(self) -> dict[str, object]:
        """The kernel's value on each axis that a call must match. An extend kernel has no partition size."""
        return self.key._asdict()

    @property
    def slug(self) -> str:
        """A short name, unique within the spec: ``extend_hd256_g6_b16_f16``."""
        return f"extend_{slug(self.axes)}"


@dataclass(frozen=True)
class CacheVariant(Point):
    """One kernel that writes new tokens' K and V into a KV cache.

    The axes are those that decide the layout and the elements of the cache. A decode kernel with the same values on
    these axes can read the cache.
    """

    operator: ClassVar[str] = "cache"

    spec: str
    head_size: int
    block_size: int
    dtype: str
    kv_cache_dtype: str

    @property
    def key(self) -> CacheKey:
        """The values that a call of ``reshape_and_cache`` must match to use this kernel."""
        return CacheKey(*(getattr(self, axis) for axis in CacheKey._fields))

    @property
    def axes(self) -> dict[str, object]:
        """The kernel's value on each of its axes."""
        return self.key._asdict()

    @property
    def slug(self) -> str:
        """A short name, unique within the spec: ``cache_hd256_b16_f16``."""
        return f"cache_{slug(self.axes)}"


def extenders_of(variants: Iterable[Variant]) -> tuple[ExtendVariant, ...]:
    """The extend kernels for a spec's decode kernels ``variants``, in the order of ``variants``.

    Decode kernels that differ only in partition size share one extend kernel.
    """
    made = (ExtendVariant(each.spec, *each.key, own=each.own) for each in variants)
    return tuple(dict.fromkeys(made))


def writers_of(variants: Iterable[Variant]) -> tuple[CacheVariant, ...]:
    """The cache writers for the caches that the decode kernels ``variants`` read, in the order of ``variants``. Decode
    kernels that read the same kind of cache have one cache writer.
    """
    fields = ("spec", *CacheKey._fields)
    return tuple(dict.fromkeys(CacheVariant(*(getattr(each, name) for name in fields)) for each in variants))


#: Operator -> a function that makes its kernels from the decode kernels of a spec. This is the list of all operators.
OPERATORS: Mapping[str, Callable[[Iterable[Variant]], tuple[Point, ...]]] = {
    "decode": tuple,
    "extend": extenders_of,
    "cache": writers_of,
}


def expand(name: str, axes: Mapping[str, Sequence[object]]) -> tuple[Variant, ...]:
    """The decode kernels for all combinations of the values in ``axes``, in the order of ``AXES``.

    ``name`` is the name of the spec. If ``axes`` lacks an axis, that axis has its default values.
    """
    values = itertools.product(*(axes.get(axis, known.default or ()) for axis, known in AXES.items()))
    return tuple(Variant(name, **dict(zip(AXES, point, strict=True))) for point in values)  # type: ignore[arg-type]
