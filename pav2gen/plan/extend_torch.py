"""The costs of a PyTorch extend kernel: its tiles of query tokens, its workspace, its calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.variant import ExtendVariant
from pav2gen.plan.torch_hooks import TorchHooks

#: Query tokens of a tile. On a CPU the scores of a tile must stay in the caches. On a GPU a tile must fill the card.
CPU_TILE, GPU_TILE = 16, 128


@dataclass(frozen=True)
class ExtendTorchPlan:
    """Figures of the PyTorch kernel."""

    variant: ExtendVariant
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
    def cpu_tile(self) -> int:
        """Query tokens of a tile on a CPU."""
        return CPU_TILE

    @property
    def gpu_tile(self) -> int:
        """Query tokens of a tile on a GPU."""
        return GPU_TILE

    @cached_property
    def hooks(self) -> TorchHooks:
        """What the kernel does to a score between the product and the softmax."""
        return TorchHooks(self.variant)

    def figures(self) -> dict[str, int | float | str | None]:
        """The figures of the PyTorch kernel that ``pav2gen list`` shows."""
        return {"query_tile": self.gpu_tile}
