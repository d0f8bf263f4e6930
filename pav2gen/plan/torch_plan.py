"""The plan of a PyTorch kernel: the sizes of its buffers and workspace, and its number of ATen calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.variant import AttentionVariant, Variant
from pav2gen.plan.torch_hooks import TorchHooks
from pav2gen.runtime.select import MIB
from pav2gen.runtime.tiling import Budget, RowTile, Tile, Tiling, partitions_reached

#: Shares of the workspace. On a CPU a chunk must stay in the last-level cache (measured on 2 cores with 32 MiB of L3:
#: docs/performance.md). On a GPU a chunk must fill the card, and costs launches (20 to 30 us each on a BI-V100).
CPU_CHUNK_BYTES, CPU_SEGMENT_BYTES = 8 * MIB, 8 * MIB
GPU_CHUNK_SHARE = 5 / 8

#: Bytes of padding in a chunk that take as long as one more tile. A tile costs 40 to 50 calls: about 150 us on a CPU
#: (docs/performance.md), about 1 ms of launches on a GPU.
CPU_PADDING_BYTES, GPU_PADDING_BYTES = 1 * MIB, 256 * MIB

#: A mask row is repeated until it spans this many bytes, so that the loop that applies it is long enough to vectorise.
MASK_SPAN_BYTES = 128


@dataclass(frozen=True)
class TorchFigures:
    """Figures of a PyTorch kernel. All bytes are for one KV head, and for one query token where they depend on it."""

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
        """The number of 16-byte grains in a key."""
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
        """Bytes of K, or of V, in a page, in the dtype of the cache."""
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


@dataclass(frozen=True)
class TorchPlan(TorchFigures):
    """Figures of the PyTorch kernel. Bytes are of one item (a partition of a sequence) and one KV head."""

    variant: Variant

    @property
    def work_bytes(self) -> int:
        """Bytes of a page's buffer. It holds the keys in the order of tokens, and later the weighted values."""
        return max(self.page_bytes, self.group_bytes)

    @cached_property
    def mask_repeats(self) -> int:
        """How many rows of a page of V one row of the mask covers. A row has one element of the head for all slots."""
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
        """Bytes of the mask of a page, for any number of KV heads."""
        return self.mask_words * 8

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in a tile, without its scores: positions as int and float, and temporaries of hooks."""
        return 13 + 4 * self.hooks.token_values + 4 * bool(self.variant.sliding_window)

    @property
    def reads_positions(self) -> bool:
        """Whether hooks or the sparse pattern read the positions of keys, or the lengths of sequences."""
        hooks, steps = self.hooks, (*self.hooks.scores, *self.hooks.masks)
        return self.variant.blocksparse or any(hooks.reads(steps, name) for name in ("k", "q", "len"))

    @property
    def always_attends(self) -> bool:
        """Whether every query attends every token of its sequence. Then no partition with tokens has the sum 0."""
        v = self.variant
        return not (v.blocksparse or v.sliding_window or v.own or self.hooks.masks)

    @property
    def lone_output(self) -> bool:
        """Whether the output of a sequence's only partition is the sequence's output."""
        return not (self.variant.sinks or self.variant.sliding_window)

    def lengths(self, num_seqs: int, longest: int) -> tuple[int, ...]:
        """The lengths to tile for ``num_seqs`` sequences of ``longest`` tokens. A window makes them shorter."""
        partition = self.variant.partition_size
        reached = partition * partitions_reached(longest, partition, self.variant.sliding_window)
        return (min(longest, reached),) * num_seqs

    @cached_property
    def cpu(self) -> Budget:
        """The workspace on a CPU: small enough for its caches."""
        chunk = min(CPU_CHUNK_BYTES, self.workspace_bytes // 2)
        return self._budget(chunk, min(CPU_SEGMENT_BYTES, self.workspace_bytes - chunk), CPU_PADDING_BYTES)

    @cached_property
    def gpu(self) -> Budget:
        """The workspace on a GPU: all that the spec allows."""
        chunk = int(self.workspace_bytes * GPU_CHUNK_SHARE)
        return self._budget(chunk, self.workspace_bytes - chunk, GPU_PADDING_BYTES)

    def _budget(self, chunk: int, segment: int, padding: int) -> Budget:
        v, scalars = self.variant, self.variant.gqa_ratio * 4
        sparse = v.gqa_ratio * 8 if v.blocksparse else 0  # block numbers (int32) and masks
        return Budget(
            chunk=chunk,
            segment=segment,
            padding=padding,
            chunk_page=self.page_bytes + self.work_bytes + self.page_floats * (self.converts + self.fp8),
            segment_page=(2 + self.hooks.slots) * self.score_bytes + sparse,
            # query, sums, and their quotient before it is rounded into tmp_out; m, z, weights, products
            # with a window also the quotient in the dtype of tmp_out, which is scattered
            segment_item=(3 + bool(v.sliding_window)) * self.group_bytes + 4 * scalars,
            page=self.mask_bytes + v.block_size * self.token_bytes + 16 * (1 + bool(v.sliding_window)),
            row=6 * self.group_bytes + 8 * scalars,  # two states being merged, and their temporaries
        )

    def smallest_workspace(self, kv_heads: int) -> int:
        """The smallest workspace in bytes. It has room for one partition of all ``kv_heads`` KV heads."""
        budget, pages = self.gpu, self.variant.pages_per_partition
        return kv_heads * (pages * budget.chunk_page + budget.row) + budget.item(pages, kv_heads)

    def calls(self, tiling: Tiling) -> int:
        """The number of ATen calls, without views, for a call that has the tiles ``tiling`` and a scratch.

        The numbers follow templates/torch/kernel.py.j2 and runtime/{call,rows,scratch,sparse,state,window}.py;
        generated tests count the calls. Tiles write ``tiling.covered`` partitions. If the call has more, two calls
        clear the others.
        """
        window, ordered = bool(self.variant.sliding_window), tiling.ordered
        clamped = ordered or window or self.reads_positions or any(tile.masked for tile in tiling.tiles())
        return (
            1  # workspace
            + clamped
            + ordered  # sort
            + 6 * window  # first partitions, scratch cleared
            + sum(self._row_tile_calls(row_tile, ordered) for row_tile in tiling.row_tiles)
        )

    def _row_tile_calls(self, row_tile: RowTile, ordered: bool) -> int:
        """ATen calls of a row tile."""
        tiles, rounds = row_tile.tiles, self._rounds(ordered)
        lone = self.lone_output and len(tiles) == tiles[0].num_parts == 1 and not ordered
        if lone:
            output = 3 + (tiles[0].masked or not self.always_attends)  # the sum clamped; o / z; out and tmp_out
        else:
            output = 2 + ordered + rounds + 9 * self.variant.sinks
        merges = 3 + (len(tiles) - 1) * 11 if len(tiles) > 1 else 0
        return ordered + sum(self._tile_calls(tile, ordered, lone) for tile in tiles) + merges + output

    def _tile_calls(self, tile: Tile, ordered: bool, lone: bool) -> int:
        """ATen calls of a tile."""
        v, window, paged = self.variant, bool(self.variant.sliding_window), tile.pages > 1
        segment = (
            (window or tile.masked or self.reads_positions)  # positions
            + (0 if window else tile.padded)
            + 5 * tile.masked  # the mask, and what it is applied to
            + (ordered or (tile.rows > 1 and not tile.masked))  # block numbers copied
        )
        softmax = 4 + (tile.masked or not self.always_attends) + paged
        scratch = 3 * ordered + self._rounds(ordered) + (not lone)
        if window:  # and the pages found
            scratch = 17 + (v.dtype != "float32")
        each_chunk = 5 + paged + 2 * self.converts + 2 * self.fp8 + tile.masked
        return (
            (1 + 2 * self.scaled)  # query copied; scales
            + segment
            + bool(tile.tail)
            + sum(map(bool, divmod(tile.tail, v.block_size)))
            + self.hooks.calls
            + 16 * v.blocksparse
            + softmax
            + scratch
            + 8 * (tile.num_parts > 1)  # partitions reduced
            + each_chunk * -(-tile.items // tile.chunk)
        )

    def _rounds(self, ordered: bool) -> bool:
        """Whether ordered results are rounded before they are put in place."""
        return ordered and self.variant.dtype != "float32"


def smallest_workspace_bytes(variant: Variant, num_kv_heads: int) -> int:
    """The smallest workspace in bytes: room for one partition of all KV heads in the PyTorch kernel."""
    return TorchPlan(variant, 0).smallest_workspace(num_kv_heads)
