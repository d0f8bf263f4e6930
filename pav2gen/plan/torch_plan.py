"""The plan of a PyTorch decode kernel: the sizes of its buffers and its workspace, and the number of ATen calls that it
makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.variant import AttentionVariant, Variant
from pav2gen.plan.torch_hooks import TorchHooks
from pav2gen.runtime.attention.tiling import Budget, RowTile, Tile, Tiling, partitions_reached
from pav2gen.runtime.choice.dispatch_row import MIB
from pav2gen.runtime.workers.shares import AHEAD, Shares

#: How the workspace of a PyTorch decode kernel is divided into two parts. ``runtime.attention.tiling`` defines chunks
#: and tiles. The chunk part holds the keys of one chunk, and later its values. The segment part holds the scores of one
#: tile.
#: CPU_CHUNK_BYTES and CPU_SEGMENT_BYTES are the sizes of the two parts on a CPU, in bytes. GPU_CHUNK_SHARE is the chunk
#: part's share of the workspace on a GPU.
#: On a CPU, a chunk must stay in the last-level cache (measured on 2 cores with 32 MiB of L3: docs/performance.md). On
#: a GPU, a chunk must be so large that it keeps all multiprocessors busy. Larger chunks also need fewer kernel
#: launches, which take 20 to 30 us each on a BI-V100.
CPU_CHUNK_BYTES, CPU_SEGMENT_BYTES = 8 * MIB, 8 * MIB
GPU_CHUNK_SHARE = 5 / 8

#: The same two parts of the workspace of each worker thread, if workers share a call on a CPU
#: (``runtime.workers.shares`` decides when they do).
WORKER_CHUNK_BYTES, WORKER_SEGMENT_BYTES = 4 * MIB, 4 * MIB

#: The number of bytes of padding that take as long to process as one more tile. Padding is the part of a tile that no
#: result needs. One more tile costs 40 to 50 more ATen calls. These calls take about 150 us on a CPU
#: (docs/performance.md). On a GPU, their launches take about 1 ms.
CPU_PADDING_BYTES, GPU_PADDING_BYTES = 1 * MIB, 256 * MIB

#: With a mask, a PyTorch decode kernel clears the values of tokens that must not be read. A row of the mask has the
#: bytes for one row of V, or for 2, 4, 8 ... rows that together have at most this number of bytes. Long rows let the
#: loop that applies the mask be vectorised.
MASK_SPAN_BYTES = 128


@dataclass(frozen=True)
class TorchFigures:
    """The figures that the plans of PyTorch decode kernels and of PyTorch extend kernels have in common.

    Sizes in bytes are for one KV head. Sizes that grow with the number of query tokens are for one query token.
    """

    variant: AttentionVariant
    workspace_bytes: int

    @property
    def fp8(self) -> bool:
        """Whether the elements of the KV cache are fp8. The kernel decodes fp8 with a lookup table."""
        return self.variant.kv_cache_dtype.startswith("fp8")

    @property
    def scaled(self) -> bool:
        """Whether the KV cache holds codes: 8-bit numbers that become keys and values when multiplied by a scale."""
        return self.variant.kv_cache_dtype != "auto"

    @property
    def storage(self) -> str:
        """The dtype of the tensors of the KV cache, as the name of a torch dtype."""
        return self.variant.storage

    @property
    def converts(self) -> bool:
        """Whether the kernel converts the elements of the KV cache to float32, because they have another dtype."""
        return self.storage != "float32"

    @property
    def key_grains(self) -> int:
        """The number of 16-byte groups in the cached key of one token, for one KV head."""
        return self.variant.head_size // self.variant.grain

    @property
    def page_values(self) -> int:
        """The number of elements that all keys in a page have together, for one KV head. The values have as many
        elements.
        """
        return self.variant.block_size * self.variant.head_size

    @property
    def page_floats(self) -> int:
        """The size in bytes of all keys in a page, converted to float32, for one KV head. The values have the same
        size.
        """
        return self.page_values * 4

    @property
    def page_bytes(self) -> int:
        """The size in bytes of all keys in a page, in the dtype of the KV cache, for one KV head. The values have the
        same size.
        """
        return self.page_values * self.variant.cache_item_bytes

    @property
    def group_bytes(self) -> int:
        """The size in bytes of one token's query in float32, for all query heads that share one KV head. The output of
        the token has the same size.
        """
        return self.variant.gqa_ratio * self.variant.head_size * 4

    @property
    def score_bytes(self) -> int:
        """The size in bytes of the float32 scores of one query token with all tokens of one page, for all query heads
        that share one KV head.
        """
        return self.variant.gqa_ratio * self.variant.block_size * 4

    @cached_property
    def hooks(self) -> TorchHooks:
        """The generated code that runs between the product q·k and the softmax.

        This code changes scores and masks keys.
        """
        return TorchHooks(self.variant)


@dataclass(frozen=True)
class TorchPlan(TorchFigures):
    """The sizes of the buffers of a PyTorch decode kernel, the bounds of its workspace, and its number of ATen calls.

    An item is one partition of one sequence. A tile is a set of items that are processed together. Sizes in bytes are
    for one item and one KV head, unless a docstring names another unit.
    """

    variant: Variant

    @property
    def work_bytes(self) -> int:
        """The bytes per page and KV head of the buffer ``work``. This buffer first holds the keys of a chunk in the
        order of tokens. Later, it holds for each page the sum of the values, weighted by the softmax.
        """
        return max(self.page_bytes, self.group_bytes)

    @cached_property
    def mask_repeats(self) -> int:
        """The number of rows of V to which one row of the mask applies. A row of V holds the same element of the value
        of each token in a page.
        """
        repeats = 1
        row = self.variant.block_size * self.variant.cache_item_bytes
        while row * repeats * 2 <= MASK_SPAN_BYTES and self.variant.head_size % (repeats * 2) == 0:
            repeats *= 2
        return repeats

    @property
    def mask_rows(self) -> int:
        """How many times a row of the mask is applied to mask all values of a page, for one KV head."""
        return self.variant.head_size // self.mask_repeats

    @property
    def mask_words(self) -> int:
        """The number of 8-byte words in a row of the mask."""
        return self.mask_repeats * self.variant.block_size * self.variant.cache_item_bytes // 8

    @property
    def mask_bytes(self) -> int:
        """The size in bytes of the mask for one page, which is one row of the mask. All KV heads use the same mask."""
        return self.mask_words * 8

    @property
    def token_bytes(self) -> int:
        """The bytes of workspace per token of an item, for all heads together and without scores. The bytes hold the
        token's position as an int and as a float, a flag for masked tokens, and temporaries of the hooks.
        """
        return 13 + 4 * self.hooks.token_values + 4 * bool(self.variant.sliding_window)

    @property
    def reads_positions(self) -> bool:
        """Whether the hooks or the block-sparse pattern need the positions of keys or queries, or the lengths of
        sequences.
        """
        hooks, steps = self.hooks, (*self.hooks.scores, *self.hooks.masks)
        return self.variant.blocksparse or any(hooks.reads(steps, name) for name in ("k", "q", "len"))

    @property
    def always_attends(self) -> bool:
        """Whether every query attends to all tokens of its sequence. If so, the sum of the softmax weights in a
        partition that has tokens is never 0.
        """
        v = self.variant
        return not (v.blocksparse or v.sliding_window or v.own or self.hooks.masks)

    @property
    def lone_output(self) -> bool:
        """Whether the output of a sequence with only one partition is the output of this partition, without further
        steps.
        """
        return not (self.variant.sinks or self.variant.sliding_window)

    @property
    def whole_output(self) -> bool:
        """Whether the kernel normalizes the softmax weights of a sequence with only one partition before it applies
        them to the values, if no token slot of the tile is masked.
        """
        return self.lone_output and self.always_attends

    @property
    def whole_grains(self) -> bool:
        """Whether a row of V in a page, which has an element of each token, consists of whole 16-byte groups."""
        return self.variant.block_size * self.variant.cache_item_bytes % 16 == 0

    def lengths(self, num_seqs: int, longest: int) -> tuple[int, ...]:
        """Return, for each of ``num_seqs`` sequences of ``longest`` tokens, the number of tokens that the kernel
        processes. With a sliding window, this number can be smaller than ``longest``.
        """
        partition = self.variant.partition_size
        reached = partition * partitions_reached(longest, partition, self.variant.sliding_window)
        return (min(longest, reached),) * num_seqs

    @cached_property
    def cpu(self) -> Budget:
        """The bounds of the workspace on a CPU. With them, the workspace stays in the CPU's caches."""
        chunk = min(CPU_CHUNK_BYTES, self.workspace_bytes // 2)
        return self._budget(chunk, min(CPU_SEGMENT_BYTES, self.workspace_bytes - chunk), CPU_PADDING_BYTES)

    @cached_property
    def worker(self) -> Budget:
        """The bounds of the workspace of each worker thread, if workers share a call on a CPU.

        A row takes more memory than elsewhere, because states of up to AHEAD tiles per worker wait to be merged.
        """
        budget = self._budget(WORKER_CHUNK_BYTES, WORKER_SEGMENT_BYTES, CPU_PADDING_BYTES)
        return budget._replace(row=budget.row + AHEAD * (self.group_bytes + 2 * self.variant.gqa_ratio * 4))

    @cached_property
    def shares(self) -> Shares:
        """The bounds of the workspace if worker threads share a call on a CPU."""
        return Shares(self.worker, self.workspace_bytes)

    @cached_property
    def gpu(self) -> Budget:
        """The bounds of the workspace on a GPU. The bounds of its two parts add up to the spec's workspace limit."""
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
        """Return the smallest possible workspace in bytes. The workspace is enough for one partition of one sequence,
        with ``kv_heads`` KV heads.
        """
        budget, pages = self.gpu, self.variant.pages_per_partition
        return kv_heads * (pages * budget.chunk_page + budget.row) + budget.item(pages, kv_heads)

    def calls(self, tiling: Tiling) -> int:
        """Return the number of ATen calls that one call of the decode operator makes, not counting views.

        The number is for a call that is divided into the tiles of ``tiling``, that passes the scratch tensors exp_sums,
        max_logits and tmp_out, and that does not ask for the log-sum-exp (lse).

        The kernel writes the first ``tiling.covered`` partitions of the scratch tensors. If the scratch tensors have
        room for more partitions, two further ATen calls clear that room. The returned number does not include these two
        calls.

        If workers share the call, the number is the sum over all workers, and each worker makes its own workspace.

        The numbers here must match the code in templates/torch/kernel.py.j2 and
        runtime/{call,rows,scratch,sparse,state,window}.py. Generated tests compare them with the real number of calls.
        """
        window, ordered = bool(self.variant.sliding_window), tiling.ordered
        clamped = ordered or window or self.reads_positions or any(tile.masked for tile in tiling.tiles())
        return (
            tiling.workers  # workspaces
            + clamped
            + ordered  # sort
            + 6 * window  # first partitions, scratch cleared
            + sum(self._row_tile_calls(row_tile, tiling) for row_tile in tiling.row_tiles)
        )

    def _row_tile_calls(self, row_tile: RowTile, tiling: Tiling) -> int:
        """Return the number of ATen calls for ``row_tile`` of ``tiling``: the tiles that process the same sequences."""
        tiles, ordered, rounds = row_tile.tiles, tiling.ordered, self._rounds(tiling.ordered)
        lone = self.lone_output and len(tiles) == tiles[0].num_parts == 1 and not ordered
        lone_output = 2 + 2 * (not self._whole(tiles[0], lone))  # out and tmp_out; the sum clamped, o / z
        output = lone_output if lone else 2 + ordered + rounds + 9 * self.variant.sinks
        copies = 3 * (len(tiles) if tiling.workers > 1 else 1)  # of the first state, or of each worker's states
        merges = copies + (len(tiles) - 1) * 11 if len(tiles) > 1 else 0
        return sum(self._tile_calls(tile, ordered, lone) for tile in tiles) + merges + output

    def _tile_calls(self, tile: Tile, ordered: bool, lone: bool) -> int:
        """Return the number of ATen calls for one tile.

        ordered: whether the kernel processes the sequences sorted by length (see ``runtime.attention.tiling``).
        lone: whether the outputs of the tile's partitions are already the outputs of its sequences.
        """
        v, window, paged = self.variant, bool(self.variant.sliding_window), tile.pages > 1
        segment = (
            (window or tile.masked or self.reads_positions)  # positions
            + (0 if window else tile.padded)
            + 5 * tile.masked  # the mask, and what it is applied to
            + (ordered or (tile.rows > 1 and not tile.masked))  # block numbers copied
            + ordered  # query copied
        )
        whole = self._whole(tile, lone)
        softmax = (4 if whole else 5 + (tile.masked or not self.always_attends)) + paged
        scratch = 3 * ordered + self._rounds(ordered) + (not lone)
        if window:  # and the pages found
            scratch = 17 + (v.dtype != "float32")
        each_chunk = 5 + paged + 2 * self.converts + 2 * self.fp8 + tile.masked
        return (
            (1 + (tile.items > 1) + 2 * self.scaled)  # query copied and scaled; scales of the cache
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

    def _whole(self, tile: Tile, lone: bool) -> bool:
        """Whether the kernel normalizes the softmax weights of ``tile`` before it applies them to the values."""
        return self.whole_output and lone and not tile.masked

    def _rounds(self, ordered: bool) -> bool:
        """Whether the kernel rounds its float32 results to the dtype of the output in a separate ATen call. It does so
        if it processes the sequences sorted by length, because it then writes the results in the order of the call.

        ordered: whether the kernel processes the sequences sorted by length (see ``runtime.attention.tiling``).
        """
        return ordered and self.variant.dtype != "float32"


def smallest_workspace_bytes(variant: Variant, num_kv_heads: int) -> int:
    """Return the smallest possible workspace in bytes for the PyTorch decode kernel of ``variant``. The workspace is
    enough for one partition of one sequence, with ``num_kv_heads`` KV heads.
    """
    return TorchPlan(variant, 0).smallest_workspace(num_kv_heads)
