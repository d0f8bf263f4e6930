"""What a PyTorch kernel costs: its buffers, its workspace, its calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.variant import Variant
from pav2gen.runtime.select import MIB
from pav2gen.runtime.tiling import Budget, Tiling

#: Shares of the workspace. On a CPU a chunk must stay in the last-level cache (measured on 2 cores with 32 MiB of L3:
#: docs/performance.md); on a GPU it must fill the card, and a chunk costs launches (20 to 30 us each on a BI-V100).
CPU_CHUNK_BYTES, CPU_SEGMENT_BYTES = 8 * MIB, 8 * MIB
GPU_CHUNK_SHARE = 5 / 8

#: A mask row is repeated until it spans this many bytes: the loop that applies it must be long enough to vectorise.
MASK_SPAN_BYTES = 128


@dataclass(frozen=True)
class TorchPlan:
    """Figures of the PyTorch kernel. Bytes are of one item (a partition of a sequence) and one KV head."""

    variant: Variant
    workspace_bytes: int

    @property
    def fp8(self) -> bool:
        """Whether the cache holds 8-bit floating-point codes."""
        return self.variant.kv_cache_dtype != "auto"

    @property
    def converts(self) -> bool:
        """Whether the cache holds another type than float32."""
        return self.fp8 or self.variant.dtype != "float32"

    @property
    def key_grains(self) -> int:
        """16-byte grains of a key."""
        return self.variant.head_size // self.variant.grain

    @property
    def page_values(self) -> int:
        """Elements of K, or of V, in a page."""
        return self.variant.block_size * self.variant.head_size

    @property
    def partition_values(self) -> int:
        """Elements of K, or of V, in a partition."""
        return self.variant.partition_size * self.variant.head_size

    @property
    def partition_floats(self) -> int:
        """Bytes of K, or of V, in a partition, in float32."""
        return self.partition_values * 4

    @property
    def partition_bytes(self) -> int:
        """Bytes of K, or of V, in a partition, as the cache holds it."""
        return self.partition_values * self.variant.cache_item_bytes

    @property
    def group_bytes(self) -> int:
        """Bytes of the query, or of the output, of a group in float32."""
        return self.variant.gqa_ratio * self.variant.head_size * 4

    @property
    def score_bytes(self) -> int:
        """Bytes of the scores of a group in float32."""
        return self.variant.gqa_ratio * self.variant.partition_size * 4

    @property
    def work_bytes(self) -> int:
        """The buffer that holds keys in the order of tokens, then the weighted values of each page."""
        return max(self.partition_bytes, self.variant.pages_per_partition * self.group_bytes)

    @cached_property
    def mask_repeats(self) -> int:
        """Rows of a page of V (one element of the head, all slots) that one row of the mask spans."""
        repeats = 1
        row = self.variant.block_size * self.variant.cache_item_bytes
        while row * repeats * 2 <= MASK_SPAN_BYTES and self.variant.head_size % (repeats * 2) == 0:
            repeats *= 2
        return repeats

    @property
    def mask_rows(self) -> int:
        """Rows of the mask that cover a page of one KV head."""
        return self.variant.head_size // self.mask_repeats

    @property
    def mask_words(self) -> int:
        """8-byte words of a mask row."""
        return self.mask_repeats * self.variant.block_size * self.variant.cache_item_bytes // 8

    @property
    def mask_bytes(self) -> int:
        """Bytes of the masks of an item, for any number of KV heads."""
        return self.variant.pages_per_partition * self.mask_words * 8

    @cached_property
    def cpu(self) -> Budget:
        """The workspace on a CPU: small, for its caches."""
        chunk = min(CPU_CHUNK_BYTES, self.workspace_bytes // 2)
        return self._budget(chunk, min(CPU_SEGMENT_BYTES, self.workspace_bytes - chunk))

    @cached_property
    def gpu(self) -> Budget:
        """The workspace on a GPU: all that the spec allows."""
        chunk = int(self.workspace_bytes * GPU_CHUNK_SHARE)
        return self._budget(chunk, self.workspace_bytes - chunk)

    def _budget(self, chunk: int, segment: int) -> Budget:
        v, scalars = self.variant, self.variant.gqa_ratio * 4
        sparse = v.gqa_ratio * v.pages_per_partition * 8 if v.blocksparse else 0  # block numbers (int32) and masks
        return Budget(
            chunk=chunk,
            segment=segment,
            chunk_item=self.partition_bytes + self.work_bytes + self.partition_floats * (self.converts + self.fp8),
            # query, sums, and their quotient before it is rounded into tmp_out; m, z, weights, products
            segment_item=2 * self.score_bytes + 3 * self.group_bytes + 4 * scalars + sparse,
            item=self.mask_bytes + v.partition_size * 13 + v.pages_per_partition * 16,  # positions, as int and float
            row=6 * self.group_bytes + 8 * scalars,  # two states being merged, and their temporaries
        )

    def smallest_workspace(self, kv_heads: int) -> int:
        """Bytes of workspace that hold one partition of all ``kv_heads`` KV heads, in chunk and segment alike."""
        budget = self.gpu
        return kv_heads * (budget.chunk_item + budget.segment_item + budget.row) + budget.item

    def calls(self, tiling: Tiling) -> int:
        """ATen calls of the kernel that are no views, for a call that is cut into ``tiling``.

        Counted in templates/torch/kernel.py.j2 and runtime/{call,state,sparse}.py; the generated tests count them.
        """
        rows, segments, chunks = tiling.counts()
        each_row = 6 + self.fp8
        each_segment = 26 + self.fp8 + 3 * self.variant.alibi + 16 * self.variant.blocksparse
        each_merge = 10
        each_chunk = 7 + 2 * self.converts + 2 * self.fp8
        return 2 + rows * each_row + segments * each_segment + (segments - rows) * each_merge + chunks * each_chunk


def smallest_workspace_bytes(variant: Variant, num_kv_heads: int) -> int:
    """Bytes of workspace without which the PyTorch kernel cannot hold one partition of all KV heads."""
    return TorchPlan(variant, 0).smallest_workspace(num_kv_heads)
