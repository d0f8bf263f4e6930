"""Computes the query tile sizes, the memory limits and the number of ATen calls of a PyTorch extend kernel.

A query tile is a set of consecutive query tokens of one sequence that the kernel processes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.variant import ITEM_BYTES, ExtendVariant
from pav2gen.plan.torch_plan import TorchFigures
from pav2gen.runtime.attention.tiling import Tile
from pav2gen.runtime.choice.dispatch_row import MIB
from pav2gen.runtime.extend.tiles import ExtendBudget, Group, Shape, copies_of, gathers_items

#: CPU_ROWS and GPU_ROWS are the most query rows in a query tile, for each KV head. A query row is a pair of a query
#: token and a query head. With this many rows, the matrix products take so long that the time to read K and V hardly
#: matters. However, a query tile may always have LEAST_TILE query tokens, even if these are more query rows.
CPU_ROWS, GPU_ROWS = 384, 768
LEAST_TILE = 64

#: The number of tokens in a partition, before the plan rounds it down to whole pages.
KEYS = 512

#: How the workspace of a PyTorch extend kernel is divided into two parts. ``runtime.attention.tiling`` defines chunks
#: and tiles. The chunk part holds the keys of one chunk, and later its values. The segment part holds the scores of one
#: tile.
#: CPU_CHUNK_BYTES and CPU_SEGMENT_BYTES are the sizes of the two parts on a CPU, in bytes. GPU_CHUNK_SHARE is the chunk
#: part's share of the workspace on a GPU.
#: On a GPU, both parts must be so large that they keep all multiprocessors busy. Larger chunks also need fewer kernel
#: launches. On a CPU, both parts should stay in the last-level cache. For query tiles of more than ``NARROW`` query
#: tokens (see ``runtime.extend.tiles``), the segment part is therefore limited to CPU_WIDE_BYTES. For narrower query
#: tiles, the larger segment part is faster: the time saved by fewer tiles is more than the time lost by leaving the
#: cache (docs/performance.md).
CPU_CHUNK_BYTES, CPU_SEGMENT_BYTES, CPU_WIDE_BYTES = 8 * MIB, 32 * MIB, 16 * MIB
GPU_CHUNK_SHARE = 1 / 2

#: How much padding takes as long to process as one more tile. Padding is the part of a tile that no result needs.
#: CPU_PADDING_BYTES and GPU_PADDING_BYTES are for the time to read padding in K or V. CPU_PADDING_OPERATIONS and
#: GPU_PADDING_OPERATIONS are for the time to compute with padding, in floating-point operations. One more tile costs 40
#: to 50 more ATen calls. These calls take about 150 us on a CPU. On a GPU, their launches take about 1 ms.
CPU_PADDING_BYTES, GPU_PADDING_BYTES = 1 * MIB, 256 * MIB
CPU_PADDING_OPERATIONS, GPU_PADDING_OPERATIONS = 30 * 10**6, 10**10


@dataclass(frozen=True)
class ExtendTorchPlan(TorchFigures):
    """The query tile sizes, the memory limits and the number of ATen calls of a PyTorch extend kernel.

    A query tile is a set of consecutive query tokens of one sequence that the kernel processes together. Sizes in bytes
    are for one KV head, unless the docstring of a property says otherwise. Sizes that grow with the number of query
    tokens are for one query token.
    """

    variant: ExtendVariant

    @property
    def keys(self) -> int:
        """The number of tokens in a partition, which consists of whole pages."""
        page = self.variant.block_size
        return max(1, KEYS // page) * page

    @property
    def cpu_tile(self) -> int:
        """The largest number of query tokens that the kernel processes together on a CPU, for one sequence."""
        return max(LEAST_TILE, CPU_ROWS // self.variant.gqa_ratio)

    @property
    def gpu_tile(self) -> int:
        """The largest number of query tokens that the kernel processes together on a GPU, for one sequence."""
        return max(LEAST_TILE, GPU_ROWS // self.variant.gqa_ratio)

    @property
    def group_row_bytes(self) -> int:
        """The size in bytes of one token's query in the dtype of the query tensor, for all query heads that share one
        KV head.

        A token's output has the same size as its query.
        """
        return self.group_bytes // 4 * ITEM_BYTES[self.variant.dtype]

    @property
    def value_row_bytes(self) -> int:
        """The size in bytes of a row of V.

        A row of V holds one of the ``head_size`` elements of the value, for every token of a page.
        """
        return self.variant.block_size * self.variant.cache_item_bytes

    @property
    def mask_bytes(self) -> int:
        """The size in bytes of the token mask for one page.

        The token mask clears the values of tokens that must not be read. All KV heads use the same token mask.
        """
        return self.value_row_bytes

    @property
    def mask_words(self) -> int:
        """The number of 8-byte words in the token mask for one page.

        The token mask clears the values of tokens that must not be read.
        """
        return self.mask_bytes // 8

    @cached_property
    def cpu(self) -> ExtendBudget:
        """The memory limits of the temporary buffers on a CPU, small enough for the CPU's caches."""
        chunk = min(CPU_CHUNK_BYTES, self.workspace_bytes // 2)
        segment = min(CPU_SEGMENT_BYTES, self.workspace_bytes - chunk)
        return self._budget(self.cpu_tile, chunk, segment, CPU_WIDE_BYTES, CPU_PADDING_BYTES, CPU_PADDING_OPERATIONS)

    @cached_property
    def gpu(self) -> ExtendBudget:
        """The memory limits of the temporary buffers on a GPU.

        The limit for keys or values and the limit for scores add up to the workspace limit in the spec.
        """
        chunk = int(self.workspace_bytes * GPU_CHUNK_SHARE)
        segment = self.workspace_bytes - chunk
        return self._budget(self.gpu_tile, chunk, segment, segment, GPU_PADDING_BYTES, GPU_PADDING_OPERATIONS)

    def _budget(self, width: int, chunk: int, segment: int, wide: int, padding: int, operations: int) -> ExtendBudget:
        v, scalars, window = self.variant, self.variant.gqa_ratio * 4, bool(self.variant.sliding_window)
        return ExtendBudget(
            width=width,
            chunk=chunk,
            segment=segment,
            wide=min(wide, segment),
            padding=padding,
            row_padding=max(1, operations // (4 * v.gqa_ratio * self.page_values)),
            chunk_page=2 * self.page_bytes + self.page_floats * (self.converts + self.fp8),
            # positions as int and float, tokens that are not read; block numbers
            page=self.mask_bytes + v.block_size * (13 + 4 * window) + 16 * (1 + window),
            # keys that a row does not attend; temporaries of hooks
            row_page=v.block_size * (1 + window + 4 * self.hooks.token_values),
            segment_page=(1 + self.hooks.slots) * self.score_bytes,
            segment_item=2 * self.group_bytes + 2 * scalars,  # query and sums; maxima and sums of weights
            # query and sums; rows as the call holds them, three times more where they are written
            row=2 * self.group_bytes + max(self.group_bytes, 4 * self.group_row_bytes) + 12 * scalars + 64,
        )

    def smallest_workspace(self, kv_heads: int) -> int:
        """Return the size in bytes of the smallest possible workspace, that is, of all temporary buffers of a call.

        The smallest workspace holds one partition for one query token.

        kv_heads: the number of KV heads.
        """
        budget, pages = self.gpu, self.keys // self.variant.block_size
        each = pages * (budget.chunk_page + budget.segment_page) + budget.segment_item + budget.row
        return kv_heads * each + pages * (budget.page + budget.row_page)

    def shape(self, kv_heads: int) -> Shape:
        """Return the sizes that decide how the kernel splits the query tokens of a call into query tiles.

        A query tile is a set of consecutive query tokens of one sequence.

        kv_heads: the number of KV heads.
        """
        return Shape(kv_heads, self.keys, self.variant.block_size, self.variant.sliding_window)

    def calls(self, num_seqs: int, tokens: int, max_query_len: int, max_seq_len: int, kv_heads: int) -> int:
        """Return the number of ATen calls that one call of the extend operator makes on a CPU.

        ATen calls that only create views do not count. The count is valid for an extend call that requests no
        log-sum-exp (lse), with sequence lengths that the host does not know.

        num_seqs: the number of sequences.
        tokens: the number of query tokens of all sequences together.
        max_query_len: an upper bound of the query lengths, in tokens.
        max_seq_len: an upper bound of the sequence lengths, in tokens.
        kv_heads: the number of KV heads.
        """
        group = self.cpu.bound(tokens, num_seqs, max_seq_len, self.shape(kv_heads), max_query_len)
        return self.calls_of((group,), kv_heads)

    def calls_of(self, groups: Sequence[Group], kv_heads: int) -> int:
        """Return the number of ATen calls that one call of the extend operator makes.

        ATen calls that only create views do not count. The count is valid for an extend call that requests no
        log-sum-exp (lse).

        The counts in this method must match the code in templates/torch/extend.py.j2, runtime/extend/rows.py and
        runtime/attention/state.py. Generated tests compare the counts with the real numbers of calls.

        groups: the groups of query tiles into which the extend call is split. A query tile is a set of consecutive
        query tokens of one sequence.
        kv_heads: the number of KV heads.
        """
        return 1 + sum(self._calls_of_group(group, kv_heads) for group in groups)  # workspace

    def _calls_of_group(self, group: Group, kv_heads: int) -> int:
        v, counts, known = self.variant, group.tiling.counts(), group.tiles is not None
        window, tiles = bool(v.sliding_window), list(group.tiling.tiles())
        each_row_tile = 21 + 2 * self.scaled + 10 * v.sinks + 3 * window
        if not group.full:  # places of results
            each_row_tile += 4 if known else 12
        each_tile = 18 + self.hooks.calls + 17 * window
        each_chunk = 4 + 2 * self.converts + 2 * self.fp8
        return (
            (1 if known else 27)  # query tiles
            + counts.row_tiles * each_row_tile
            + counts.tiles * each_tile
            + counts.chunks * each_chunk
            + sum(self._calls_of_values(tile, kv_heads) for tile in tiles)
            + sum(copies_of(tile) > 0 for tile in tiles) * 3  # queries copied, partitions added
            + counts.masked_tiles * (3 if window else 6)
            + (0 if window else counts.padded_tiles)
            + counts.masked_chunks
        )

    def _calls_of_values(self, tile: Tile, kv_heads: int) -> int:
        """Return the number of ATen calls that copy the values of ``tile`` from the KV cache to temporary buffers.

        The kernel makes one call per item (a partition of one query tile), or two calls per chunk of several items. The
        function ``gathers_items`` decides between one call per item and two calls per chunk.
        """
        grains = kv_heads * self.page_bytes // (8 if self.value_row_bytes % 16 else 16)
        return tile.items if gathers_items(tile, grains) else 2 * -(-tile.items // tile.chunk)

    def figures(self) -> dict[str, int | float | str | None]:
        """Return the values that ``pav2gen list`` prints for this kernel, as a dict from column name to value."""
        return {"query_tile": self.gpu_tile}
