"""The figures that the PyTorch kernels of decode and extend share: bytes of a page, of a group, of scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.variant import AttentionVariant
from pav2gen.plan.torch_hooks import TorchHooks


@dataclass(frozen=True)
class TorchFigures:
    """Figures of a PyTorch kernel. Bytes are of one KV head, and of one query token if they depend on the query."""

    variant: AttentionVariant
    workspace_bytes: int

    @property
    def fp8(self) -> bool:
        """Whether the cache holds 8-bit floating-point codes, which a table decodes."""
        return self.variant.kv_cache_dtype.startswith("fp8")

    @property
    def scaled(self) -> bool:
        """Whether the cache holds codes: values divided by a scale."""
        return self.variant.kv_cache_dtype != "auto"

    @property
    def storage(self) -> str:
        """The dtype of the cache's tensors."""
        return self.variant.storage

    @property
    def converts(self) -> bool:
        """Whether the cache's type is not float32."""
        return self.storage != "float32"

    @property
    def key_grains(self) -> int:
        """16-byte grains of a key."""
        return self.variant.head_size // self.variant.grain

    @property
    def page_values(self) -> int:
        """Elements of K, or of V, in a page."""
        return self.variant.block_size * self.variant.head_size

    @property
    def page_floats(self) -> int:
        """Bytes of K, or of V, in a page, in float32."""
        return self.page_values * 4

    @property
    def page_bytes(self) -> int:
        """Bytes of K, or of V, in a page, as the cache holds it."""
        return self.page_values * self.variant.cache_item_bytes

    @property
    def group_bytes(self) -> int:
        """Bytes of one group's query, or output, in float32."""
        return self.variant.gqa_ratio * self.variant.head_size * 4

    @property
    def score_bytes(self) -> int:
        """Bytes of the scores of a group over a page, in float32."""
        return self.variant.gqa_ratio * self.variant.block_size * 4

    @cached_property
    def hooks(self) -> TorchHooks:
        """What the kernel does to a score between the product and the softmax."""
        return TorchHooks(self.variant)
