"""The plan of a PyTorch decode kernel: the sizes of its buffers and its workspace, and its number of ATen calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.variant import AttentionVariant, Variant
from pav2gen.plan.torch_hooks import TorchHooks
from pav2gen.runtime.dispatch_row import MIB
from pav2gen.runtime.tiling import Budget, RowTile, Tile, Tiling, partitions_reached

#: The two parts of the workspace, in bytes. CHUNK bytes hold the keys of a chunk, and later its values. SEGMENT bytes
#: hold the scores of a tile. ``runtime.tiling`` defines chunks and tiles. On a GPU, CHUNK has the share GPU_CHUNK_SHARE
#: of the workspace. On a CPU, a chunk must stay in the last-level cache (measured on 2 cores with 32 MiB of L3:
#: docs/performance.md). On a GPU, a chunk must be large enough to fill the card, and few chunks mean few launches (20
#: to 30 us each on a BI-V100).
CPU_CHUNK_BYTES, CPU_SEGMENT_BYTES = 8 * MIB, 8 * MIB
GPU_CHUNK_SHARE = 5 / 8

#: Bytes of padding that take as long to process as one more tile. A tile costs 40 to 50 ATen calls: about 150 us on a
#: CPU (docs/performance.md), or about 1 ms of launches on a GPU.
CPU_PADDING_BYTES, GPU_PADDING_BYTES = 1 * MIB, 256 * MIB

#: A row of the mask is repeated until it has this many bytes, so that the loop that applies the mask can be vectorised.
MASK_SPAN_BYTES = 128


@dataclass(frozen=True)
class TorchFigures:
    """The part of a PyTorch kernel's plan that decode and extend kernels have in common.

    A property in bytes is the size for one KV head, and for one query token if it depends on the number of query
    tokens.
    """

    variant: AttentionVariant
    workspace_bytes: int

    @property
    def fp8(self) -> bool:
        """Whether the cache's elements are fp8, which the kernel decodes with a table."""
        return self.variant.kv_cache_dtype.startswith("fp8")

    @property
    def scaled(self) -> bool:
        """Whether the cache holds encoded elements, which are values divided by a scale."""
        return self.variant.kv_cache_dtype != "auto"

    @property
    def storage(self) -> str:
        """The dtype of the cache's tensors."""
        return self.variant.storage

    @property
    def converts(self) -> bool:
        """Whether the kernel converts the cache's elements to float32, because their dtype is not float32."""
        return self.storage != "float32"

    @property
    def key_grains(self) -> int:
        """The number of 16-byte groups in the key of one token and KV head."""
        return self.variant.head_size // self.variant.grain

    @property
    def page_values(self) -> int:
        """The number of elements of K in a page, for one KV head. V has as many elements as K."""
        return self.variant.block_size * self.variant.head_size

    @property
    def page_floats(self) -> int:
        """Bytes of K in a page for one KV head, in float32. V has as many bytes as K."""
        return self.page_values * 4

    @property
    def page_bytes(self) -> int:
        """Bytes of K in a page for one KV head, in the dtype of the cache. V has as many bytes as K."""
        return self.page_values * self.variant.cache_item_bytes

    @property
    def group_bytes(self) -> int:
        """Bytes of the query of one token in float32, for the query heads of one KV head. The output has as many bytes
        as the query.
        """
        return self.variant.gqa_ratio * self.variant.head_size * 4

    @property
    def score_bytes(self) -> int:
        """Bytes of the float32 scores of one query token with the tokens of one page, for the query heads of one KV
        head.
        """
        return self.variant.gqa_ratio * self.variant.block_size * 4

    @cached_property
    def hooks(self) -> TorchHooks:
        """The code between the product q·k and the softmax, which changes scores and masks keys."""
        return TorchHooks(self.variant)


@dataclass(frozen=True)
class TorchPlan(TorchFigures):
    """The plan of a PyTorch decode kernel.

    An item is one partition of one sequence. A tile is a set of items that are processed together. A property in bytes
    is the size for one item and one KV head.
    """

    variant: Variant

    @property
    def work_bytes(self) -> int:
        """Bytes per page of a buffer that first holds the keys in the order of tokens, and later the weighted sums of
        values.
        """
        return max(self.page_bytes, self.group_bytes)

    @cached_property
    def mask_repeats(self) -> int:
        """The number of rows of V that one row of the mask covers. A row of V is one element of the head for all tokens
        of a page.
        """
        repeats = 1
        row = self.variant.block_size * self.variant.cache_item_bytes
        while row * repeats * 2 <= MASK_SPAN_BYTES and self.variant.head_size % (repeats * 2) == 0:
            repeats *= 2
        return repeats

    @property
    def mask_rows(self) -> int:
        """The number of mask rows that cover the V of a page for one KV head."""
        return self.variant.head_size // self.mask_repeats

    @property
    def mask_words(self) -> int:
        """The number of 8-byte words in a row of the mask."""
        return self.mask_repeats * self.variant.block_size * self.variant.cache_item_bytes // 8

    @property
    def mask_bytes(self) -> int:
        """Bytes of the mask of a page. The same mask serves all KV heads."""
        return self.mask_words * 8

    @property
    def token_bytes(self) -> int:
        """Bytes of workspace per token of an item, in addition to its scores: the position as int and as float, and
        temporaries of hooks.
        """
        return 13 + 4 * self.hooks.token_values + 4 * bool(self.variant.sliding_window)

    @property
    def reads_positions(self) -> bool:
        """Whether the hooks or the block-sparse pattern read the positions of keys or the lengths of sequences."""
        hooks, steps = self.hooks, (*self.hooks.scores, *self.hooks.masks)
        return self.variant.blocksparse or any(hooks.reads(steps, name) for name in ("k", "q", "len"))

    @property
    def always_attends(self) -> bool:
        """Whether every query attends to all tokens of its sequence, so that the softmax sum of a partition with tokens
        is not 0.
        """
        v = self.variant
        return not (v.blocksparse or v.sliding_window or v.own or self.hooks.masks)

    @property
    def lone_output(self) -> bool:
        """Whether the output of a partition is already the output of its sequence, if the sequence has only this
        partition.
        """
        return not (self.variant.sinks or self.variant.sliding_window)

    def lengths(self, num_seqs: int, longest: int) -> tuple[int, ...]:
        """The numbers of tokens to process for ``num_seqs`` sequences of ``longest`` tokens. A sliding window reduces
        these numbers.
        """
        partition = self.variant.partition_size
        reached = partition * partitions_reached(longest, partition, self.variant.sliding_window)
        return (min(longest, reached),) * num_seqs

    @cached_property
    def cpu(self) -> Budget:
        """The bounds of the workspace on a CPU, which keep the workspace within the CPU's caches."""
        chunk = min(CPU_CHUNK_BYTES, self.workspace_bytes // 2)
        return self._budget(chunk, min(CPU_SEGMENT_BYTES, self.workspace_bytes - chunk), CPU_PADDING_BYTES)

    @cached_property
    def gpu(self) -> Budget:
        """The bounds of the workspace on a GPU, which add up to the workspace limit of the spec."""
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
        """The smallest workspace in bytes: enough for one partition with ``kv_heads`` KV heads."""
        budget, pages = self.gpu, self.variant.pages_per_partition
        return kv_heads * (pages * budget.chunk_page + budget.row) + budget.item(pages, kv_heads)

    def calls(self, tiling: Tiling) -> int:
        """The number of ATen calls of one call of the operator, not counting views.

        The call is split as ``tiling`` says, passes scratch tensors (exp_sums, max_logits, tmp_out) and does not ask
        for lse. The numbers must match the code in templates/torch/kernel.py.j2 and
        runtime/{call,rows,scratch,sparse,state,window}.py. Generated tests count the calls. The tiles write the first
        ``tiling.covered`` partitions of the scratch tensors. If these tensors have more partitions, two further calls
        clear the rest. These two calls are not counted here.
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
        """The number of ATen calls for a row tile: the set of tiles that process the same sequences. ``ordered`` says
        whether the call's sequences are sorted by length.
        """
        tiles, rounds = row_tile.tiles, self._rounds(ordered)
        lone = self.lone_output and len(tiles) == tiles[0].num_parts == 1 and not ordered
        if lone:
            output = 3 + (tiles[0].masked or not self.always_attends)  # the sum clamped; o / z; out and tmp_out
        else:
            output = 2 + ordered + rounds + 9 * self.variant.sinks
        merges = 3 + (len(tiles) - 1) * 11 if len(tiles) > 1 else 0
        return ordered + sum(self._tile_calls(tile, ordered, lone) for tile in tiles) + merges + output

    def _tile_calls(self, tile: Tile, ordered: bool, lone: bool) -> int:
        """The number of ATen calls for one tile. ``ordered`` says whether the call's sequences are sorted by length,
        and ``lone`` whether the output of the tile is already the output of its sequences.
        """
        v, window, paged = self.variant, bool(self.variant.sliding_window), tile.pages > 1
        segment = (
            (window or tile.masked or self.reads_positions)  # positions
            + (0 if window else tile.padded)
            + 5 * tile.masked  # the mask, and what it is applied to
            + (ordered or (tile.rows > 1 and not tile.masked))  # block numbers copied
        )
        softmax = 5 + (tile.masked or not self.always_attends) + paged
        scratch = 3 * ordered + self._rounds(ordered) + (not lone)
        if window:  # and the pages found
            scratch = 17 + (v.dtype != "float32")
        each_chunk = 5 + paged + 2 * self.converts + 2 * self.fp8 + tile.masked
        return (
            (2 + 2 * self.scaled)  # query copied and scaled; scales of the cache
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
        """Whether the results are rounded to the output's dtype before they are written in the call's order.
        ``ordered`` says whether the call's sequences are sorted by length.
        """
        return ordered and self.variant.dtype != "float32"


def smallest_workspace_bytes(variant: Variant, num_kv_heads: int) -> int:
    """The smallest workspace of a PyTorch decode kernel in bytes: enough for one partition with ``num_kv_heads`` KV
    heads.
    """
    return TorchPlan(variant, 0).smallest_workspace(num_kv_heads)
