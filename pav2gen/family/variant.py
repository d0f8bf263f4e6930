"""A variant: one point of a family of kernels, and every name that derives from it.

Nothing ever parses a name back: code that needs an axis reads the field.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pav2gen.family.axes import AXES, slug
from pav2gen.runtime.select import FEATURES, Key

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Variant:
    """One kernel of one spec: its key, its partition size, and its names."""

    spec: str
    head_size: int
    gqa_ratio: int
    block_size: int
    dtype: str
    kv_cache_dtype: str
    alibi: bool
    blocksparse: bool
    partition_size: int
    softcap: float | None = None
    sliding_window: int | None = None
    sinks: bool = False
    modification: str | None = None

    @property
    def key(self) -> Key:
        """The key that a call is matched against."""
        return Key(*(getattr(self, axis) for axis in Key._fields))

    @property
    def slug(self) -> str:
        """A short name, unique within the spec: ``hd256_g6_b16_f16_p512``."""
        return slug({axis: getattr(self, axis) for axis in AXES})

    @property
    def features(self) -> tuple[str, ...]:
        """What its attention has beyond plain attention, in words."""
        words = (AXES[axis].title(getattr(self, axis)) for axis in FEATURES)
        return tuple(word for word in words if word)

    @property
    def symbol(self) -> str:
        """A name unique over all specs: the C symbol, and the name of the test."""
        return f"pav2_{self.spec}_{self.slug}"

    @property
    def cache_item_bytes(self) -> int:
        """Bytes of one element of the KV cache."""
        return ITEM_BYTES[self.dtype] if self.kv_cache_dtype == "auto" else 1

    @property
    def grain(self) -> int:
        """Elements in 16 bytes of the cache: the ``x`` of vLLM's key layout [blocks, kv heads, head/x, block, x]."""
        return 16 // self.cache_item_bytes

    @property
    def pages_per_partition(self) -> int:
        """Pages (blocks of the cache) in a partition."""
        return self.partition_size // self.block_size

    @property
    def torch_path(self) -> str:
        """The PyTorch kernel, below the root of the generated package."""
        return f"{self.spec}/torch_kernels/{self.slug}.py"

    @property
    def cuda_path(self) -> str:
        """The CUDA source, below the root of the generated package."""
        return f"{self.spec}/cuda_kernels/{self.slug}.cu"

    @property
    def test_path(self) -> str:
        """The test module, below the root of the generated package."""
        return f"{self.spec}/tests/test_{self.spec}_{self.slug}.py"


def expand(name: str, axes: Mapping[str, Sequence[object]]) -> tuple[Variant, ...]:
    """Every point of the product of ``axes``, in the order of ``AXES``; an axis that is not there has its default."""
    values = itertools.product(*(axes.get(axis, known.default or ()) for axis, known in AXES.items()))
    return tuple(Variant(name, **dict(zip(AXES, point, strict=True))) for point in values)  # type: ignore[arg-type]
