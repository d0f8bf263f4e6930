"""Computes the buffer sizes, the memory limits and the number of ATen calls of a PyTorch decode kernel."""

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
    """The sizes and properties that both PyTorch decode kernels and PyTorch extend kernels have.

    Sizes in bytes are for one KV head. Sizes that grow with the number of query tokens are for one query token.
    """

    variant: AttentionVariant
    workspace_bytes: int

    @property
    def fp8(self) -> bool:
        """Whether the elements of the KV cache are fp8 numbers, which the kernel decodes with a lookup table."""
        return self.variant.kv_cache_dtype.startswith("fp8")

    @property
    def scaled(self) -> bool:
        """Whether the KV cache holds 8-bit numbers that a scale turns into keys and values."""
        return self.variant.kv_cache_dtype != "auto"

    @property
    def storage(self) -> str:
        """The name of the torch dtype of the KV cache tensors."""
        return self.variant.storage

    @property
    def converts(self) -> bool:
        """Whether the kernel must convert the elements of the KV cache to float32."""
        return self.storage != "float32"

    @property
    def key_grains(self) -> int:
        """The number of 16-byte groups in the cached key of one token, for one KV head."""
        return self.variant.head_size // self.variant.grain

    @property
    def page_values(self) -> int:
        """The number of elements of all keys in a page, for one KV head.

        The values in a page have the same number of elements.
        """
        return self.variant.block_size * self.variant.head_size

    @property
    def page_floats(self) -> int:
        """The size in bytes of all keys in a page after their conversion to float32, for one KV head.

        The values in a page have the same size as the keys.
        """
        return self.page_values * 4

    @property
    def page_bytes(self) -> int:
        """The size in bytes of all keys in a page, in the dtype of the KV cache, for one KV head.

        The values in a page have the same size as the keys.
        """
        return self.page_values * self.variant.cache_item_bytes

    @property
    def group_bytes(self) -> int:
        """The size in bytes of one token's query in float32, for all query heads that share one KV head.

        A token's output has the same size as its query.
        """
        return self.variant.gqa_ratio * self.variant.head_size * 4

    @property
    def score_bytes(self) -> int:
        """The size in bytes of the float32 scores between one query token and all keys of a page.

        The size includes the scores of all query heads that share one KV head.
        """
        return self.variant.gqa_ratio * self.variant.block_size * 4

    @cached_property
    def hooks(self) -> TorchHooks:
        """The generated code that changes scores and masks keys, between the product q·k and the softmax."""
        return TorchHooks(self.variant)


@dataclass(frozen=True)
class TorchPlan(TorchFigures):
    """The buffer sizes, the memory limits and the number of ATen calls of a PyTorch decode kernel.

    An item is one partition of one sequence. A tile is a set of items that the kernel processes together. Sizes in
    bytes are for one item and one KV head, unless the docstring of a property says otherwise.
    """

    variant: Variant

    @property
    def work_bytes(self) -> int:
        """The size in bytes of the buffer ``work``, per page and KV head.

        The buffer first holds keys in token order. Later, the buffer holds the softmax-weighted sum of the values of
        each page.
        """
        return max(self.page_bytes, self.group_bytes)

    @cached_property
    def mask_repeats(self) -> int:
        """The number of rows of V that the kernel masks with one row of the token mask.

        The token mask clears the values of tokens that must not be read.
        A row of V holds one of the ``head_size`` elements of the value, for every token of a page.
        """
        repeats = 1
        row = self.variant.block_size * self.variant.cache_item_bytes
        while row * repeats * 2 <= MASK_SPAN_BYTES and self.variant.head_size % (repeats * 2) == 0:
            repeats *= 2
        return repeats

    @property
    def mask_rows(self) -> int:
        """How many times the kernel applies a row of the token mask to mask all values of a page, for one KV head.

        The token mask clears the values of tokens that must not be read.
        """
        return self.variant.head_size // self.mask_repeats

    @property
    def mask_words(self) -> int:
        """The number of 8-byte words in a row of the token mask.

        The token mask clears the values of tokens that must not be read.
        """
        return self.mask_repeats * self.variant.block_size * self.variant.cache_item_bytes // 8

    @property
    def mask_bytes(self) -> int:
        """The size in bytes of the token mask for one page.

        The token mask clears the values of tokens that must not be read. All KV heads use the same token mask.
        """
        return self.mask_words * 8

    @property
    def token_bytes(self) -> int:
        """The bytes of temporary buffers per token of a partition, without scores, for all heads together.

        The buffers hold each token's position as int and as float, a flag for masked tokens, and temporaries of the
        score and mask code.
        """
        return 13 + 4 * self.hooks.token_values + 4 * bool(self.variant.sliding_window)

    @property
    def reads_positions(self) -> bool:
        """Whether the kernel needs token positions or sequence lengths to change scores or to mask keys."""
        hooks, steps = self.hooks, (*self.hooks.scores, *self.hooks.masks)
        return self.variant.blocksparse or any(hooks.reads(steps, name) for name in ("k", "q", "len"))

    @property
    def always_attends(self) -> bool:
        """Whether every query attends to all tokens of its sequence.

        With such full attention, the softmax weights of a partition that has tokens never sum to 0.
        """
        v = self.variant
        return not (v.blocksparse or v.sliding_window or v.own or self.hooks.masks)

    @property
    def lone_output(self) -> bool:
        """Whether the kernel uses a partition's output as the sequence's output, if the sequence has only one
        partition.
        """
        return not (self.variant.sinks or self.variant.sliding_window)

    @property
    def whole_output(self) -> bool:
        """Whether the kernel may normalize softmax weights before multiplying the weights by the values.

        The kernel normalizes the weights so early only for sequences with a single partition and without masked tokens.
        """
        return self.lone_output and self.always_attends

    @property
    def whole_grains(self) -> bool:
        """Whether a row of V consists of whole 16-byte groups.

        A row of V holds one of the ``head_size`` elements of the value, for every token of a page.
        """
        return self.variant.block_size * self.variant.cache_item_bytes % 16 == 0

    def lengths(self, num_seqs: int, longest: int) -> tuple[int, ...]:
        """Return the number of tokens that the kernel processes for each of ``num_seqs`` sequences.

        longest: the number of tokens of each sequence. A sliding window can make the kernel process fewer tokens.
        """
        partition = self.variant.partition_size
        reached = partition * partitions_reached(longest, partition, self.variant.sliding_window)
        return (min(longest, reached),) * num_seqs

    @cached_property
    def cpu(self) -> Budget:
        """The memory limits of the temporary buffers on a CPU, small enough for the CPU's caches."""
        chunk = min(CPU_CHUNK_BYTES, self.workspace_bytes // 2)
        return self._budget(chunk, min(CPU_SEGMENT_BYTES, self.workspace_bytes - chunk), CPU_PADDING_BYTES)

    @cached_property
    def worker(self) -> Budget:
        """The memory limits of each CPU worker thread, if several worker threads share a call.

        The limits allow up to ``AHEAD`` partial results per sequence and worker thread to wait for merging.
        """
        budget = self._budget(WORKER_CHUNK_BYTES, WORKER_SEGMENT_BYTES, CPU_PADDING_BYTES)
        return budget._replace(row=budget.row + AHEAD * (self.group_bytes + 2 * self.variant.gqa_ratio * 4))

    @cached_property
    def shares(self) -> Shares:
        """The memory limits of a call that several CPU worker threads share."""
        return Shares(self.worker, self.workspace_bytes)

    @cached_property
    def gpu(self) -> Budget:
        """The memory limits of the temporary buffers on a GPU.

        The limit for keys or values and the limit for scores add up to the workspace limit in the spec.
        """
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
        """Return the size in bytes of the smallest possible workspace, that is, of all temporary buffers of a call.

        The smallest workspace holds one partition of one sequence.

        kv_heads: the number of KV heads.
        """
        budget, pages = self.gpu, self.variant.pages_per_partition
        return kv_heads * (pages * budget.chunk_page + budget.row) + budget.item(pages, kv_heads)

    def calls(self, tiling: Tiling) -> int:
        """Return the number of ATen calls that one call of the decode operator makes.

        ATen calls that only create views do not count. The count is valid for a decode call that passes the scratch
        tensors exp_sums, max_logits and tmp_out, and requests no log-sum-exp (lse).

        The kernel writes the first ``tiling.covered`` partitions of the scratch tensors. If the scratch tensors have
        more partitions, the kernel clears the rest with two ATen calls, which do not count.

        If several worker threads share the decode call, the result is the sum over all workers. Each worker allocates
        its own temporary buffers.

        The counts in this method must match the code in templates/torch/kernel.py.j2, runtime/call.py and
        runtime/attention/{rows,scratch,sparse,state,window}.py. Generated tests compare the counts with the real
        numbers of calls.

        tiling: the division of the decode call into tiles, that is, sets of partitions that the kernel processes
        together.
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
        """Return the number of ATen calls for ``row_tile``, that is, for all tiles that process the same sequences."""
        tiles, ordered, rounds = row_tile.tiles, tiling.ordered, self._rounds(tiling.ordered)
        lone = self.lone_output and len(tiles) == tiles[0].num_parts == 1 and not ordered
        lone_output = 2 + 2 * (not self._whole(tiles[0], lone))  # out and tmp_out; the sum clamped, o / z
        output = lone_output if lone else 2 + ordered + rounds + 9 * self.variant.sinks
        copies = 3 * (len(tiles) if tiling.workers > 1 else 1)  # of the first state, or of each worker's states
        merges = copies + (len(tiles) - 1) * 11 if len(tiles) > 1 else 0
        return sum(self._tile_calls(tile, ordered, lone) for tile in tiles) + merges + output

    def _tile_calls(self, tile: Tile, ordered: bool, lone: bool) -> int:
        """Return the number of ATen calls for one tile, that is, for a set of partitions that the kernel processes
        together.

        ordered: whether the kernel sorts the sequences by length.
        lone: whether the output of each partition in the tile is already the output of its sequence.
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
        """Whether the kernel normalizes the softmax weights of ``tile`` before multiplying the weights by the values.

        lone: whether the output of each partition in the tile is already the output of its sequence.
        """
        return self.whole_output and lone and not tile.masked

    def _rounds(self, ordered: bool) -> bool:
        """Whether a separate ATen call rounds the float32 output to the dtype of the output tensor.

        Only a kernel that sorts the sequences by length makes the rounding call. The kernel must then restore the
        original order of the sequences.

        ordered: whether the kernel sorts the sequences by length.
        """
        return ordered and self.variant.dtype != "float32"


def smallest_workspace_bytes(variant: Variant, num_kv_heads: int) -> int:
    """Return the size in bytes of the smallest possible workspace, that is, of all temporary buffers of a call.

    The smallest workspace holds one partition of one sequence.

    variant: the properties of the PyTorch decode kernel, such as its head size and dtype.
    num_kv_heads: the number of KV heads.
    """
    return TorchPlan(variant, 0).smallest_workspace(num_kv_heads)
