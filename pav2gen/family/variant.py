"""Classes for the kernels of a spec file. Each class holds the axis values of a kernel, such as head size and dtype.

pav2gen makes names and paths of kernels from axis values, and never parses a name to get axis values.
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
    """The base class for a kernel of any operator.

    operator: the name of the operator, such as ``decode``.
    spec: the name of the spec that the kernel belongs to.
    dtype: the dtype of the query, or, for a kernel that writes to the KV cache, the dtype of the new keys and values.
    kv_cache_dtype: the type of the KV cache by vLLM's names, such as ``fp8_e4m3``, or ``auto`` for the same type as
    ``dtype``.
    """

    operator: ClassVar[str]
    spec: str
    dtype: str
    kv_cache_dtype: str

    @property
    @abstractmethod
    def axes(self) -> dict[str, object]:
        """A dict from the name of each axis of this kernel to the kernel's value, in the order of ``AXES``."""

    @property
    @abstractmethod
    def slug(self) -> str:
        """The kernel's name within its spec file, such as ``hd256_g6_b16_f16_p512``."""

    @property
    def symbol(self) -> str:
        """The name of the C function that the kernel's CUDA source exports, which is unique among all specs."""
        return f"pav2_{self.spec}_{self.slug}"

    @property
    def cache_item_bytes(self) -> int:
        """The size of one element of the KV cache, in bytes."""
        return ITEM_BYTES[self.dtype] if self.kv_cache_dtype == "auto" else 1

    @property
    def storage(self) -> str:
        """The dtype of the KV cache tensors: uint8 for fp8 caches, int8 for int8 caches, else the field ``dtype``."""
        return {"auto": self.dtype, "int8": "int8"}.get(self.kv_cache_dtype, "uint8")

    @property
    def grain(self) -> int:
        """The number of KV cache elements in 16 bytes.

        vLLM calls this number ``x`` in the shape of its key cache: [number of blocks, KV heads, head size / x, block
        size, x].
        """
        return 16 // self.cache_item_bytes

    @property
    def torch_path(self) -> str:
        """The path of the PyTorch kernel's source file, relative to the generated package."""
        return f"{self.spec}/torch_kernels/{self.slug}.py"

    @property
    def cuda_path(self) -> str:
        """The path of the CUDA kernel's source file, relative to the generated package."""
        return f"{self.spec}/cuda_kernels/{self.slug}.cu"

    @property
    def test_path(self) -> str:
        """The path of the Python module that tests the kernel, relative to the generated package."""
        return f"{self.spec}/tests/test_{self.spec}_{self.slug}.py"


@dataclass(frozen=True)
class AttentionVariant(Point):
    """One attention kernel, for decode or for extend.

    The fields are the name of the kernel's spec, and the properties that a call must have to use the kernel. A field
    from ``alibi`` to ``modification`` is None or False if the kernel lacks this feature.
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
    #: The spec's definition of the modification that ``modification`` names, or None if ``modification`` is None.
    own: Modification | None = field(default=None, compare=False, repr=False)

    @property
    def kv_token_bytes(self) -> int:
        """The size in bytes of one token's key and value in the KV cache, for one KV head."""
        return 2 * self.head_size * self.cache_item_bytes

    @property
    def key(self) -> Key:
        """The properties, such as head size and dtype, that a call must have to use this kernel."""
        return Key(*(getattr(self, axis) for axis in Key._fields))

    @property
    def features(self) -> tuple[str, ...]:
        """The kernel's attention features in words, such as "softcap 50" or "ALiBi". The tuple is empty for plain
        attention.
        """
        words = (AXES[axis].title(getattr(self, axis)) for axis in FEATURES)
        return tuple(word for word in words if word)


@dataclass(frozen=True)
class Variant(AttentionVariant):
    """One decode kernel, which computes attention for one query token per sequence.

    The kernel divides each sequence into partitions of ``partition_size`` tokens.
    """

    operator: ClassVar[str] = "decode"

    partition_size: int = field(kw_only=True)

    @property
    def axes(self) -> dict[str, object]:
        """A dict from the name of every axis, such as ``head_size``, to the kernel's value."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def slug(self) -> str:
        """The kernel's name within its spec file, such as ``hd256_g6_b16_f16_p512``."""
        return slug(self.axes)

    @property
    def pages_per_partition(self) -> int:
        """The number of KV cache pages in one partition."""
        return self.partition_size // self.block_size


@dataclass(frozen=True)
class ExtendVariant(AttentionVariant):
    """One extend kernel, which computes attention for several query tokens per sequence."""

    operator: ClassVar[str] = "extend"

    @property
    def axes(self) -> dict[str, object]:
        """A dict from the name of every axis except ``partition_size`` to the kernel's value."""
        return self.key._asdict()

    @property
    def slug(self) -> str:
        """The kernel's name within its spec file, such as ``extend_hd256_g6_b16_f16``."""
        return f"extend_{slug(self.axes)}"


@dataclass(frozen=True)
class CacheVariant(Point):
    """One cache writer: a kernel that writes the keys and values of new tokens into a KV cache.

    The axes of a cache writer are the properties that decide the layout and the element type of the KV cache.
    """

    operator: ClassVar[str] = "cache"

    spec: str
    head_size: int
    block_size: int
    dtype: str
    kv_cache_dtype: str

    @property
    def key(self) -> CacheKey:
        """The properties, such as head size and dtype, that a call of ``reshape_and_cache`` must have to use this
        kernel.
        """
        return CacheKey(*(getattr(self, axis) for axis in CacheKey._fields))

    @property
    def axes(self) -> dict[str, object]:
        """A dict from the name of each field of ``CacheKey`` to the kernel's value."""
        return self.key._asdict()

    @property
    def slug(self) -> str:
        """The kernel's name within its spec file, such as ``cache_hd256_b16_f16``."""
        return f"cache_{slug(self.axes)}"


def extenders_of(variants: Iterable[Variant]) -> tuple[ExtendVariant, ...]:
    """Return the extend kernels that match the decode kernels ``variants``, in the same order.

    Decode kernels that differ only in the partition size match the same extend kernel.
    """
    made = (ExtendVariant(each.spec, *each.key, own=each.own) for each in variants)
    return tuple(dict.fromkeys(made))


def writers_of(variants: Iterable[Variant]) -> tuple[CacheVariant, ...]:
    """Return the kernels that write the KV caches for the decode kernels ``variants``, in the same order.

    Decode kernels that read the same type of KV cache need only one cache writer. The fields of ``CacheKey`` determine
    the type of a KV cache.
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
    """Return one decode kernel for each combination of the values in ``axes``.

    In the order of the kernels, the last axis in ``AXES`` varies fastest.

    name: the name of the spec.
    axes: maps the name of each axis to its values. An axis that ``axes`` does not contain has its default values.
    """
    values = itertools.product(*(axes.get(axis, known.default or ()) for axis, known in AXES.items()))
    return tuple(Variant(name, **dict(zip(AXES, point, strict=True))) for point in values)  # type: ignore[arg-type]
