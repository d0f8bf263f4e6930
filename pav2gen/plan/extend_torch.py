"""The plan of a PyTorch extend kernel: its tiles of query tokens, its workspace, and its number of ATen calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.variant import ITEM_BYTES, ExtendVariant
from pav2gen.plan.torch_plan import TorchFigures
from pav2gen.runtime.dispatch_row import MIB
from pav2gen.runtime.extend.tiles import ExtendBudget, Group, Shape, copies_of, gathers_items
from pav2gen.runtime.tiling import Tile

#: The most query rows per KV head in a query tile. A query row is a pair of a query token and a query head. With this
#: many rows, the matrix products take so long that the reads of K and V hardly matter. A query tile of at most
#: LEAST_TILE query tokens may have more query rows.
CPU_ROWS, GPU_ROWS = 384, 768
LEAST_TILE = 64

#: The number of tokens in a partition of the keys, before rounding down to whole pages.
KEYS = 512

#: The two parts of the workspace, in bytes. CHUNK bytes hold the keys of a chunk, and later its values. SEGMENT bytes
#: hold the scores of a tile. ``runtime.tiling`` defines chunks and tiles. On a GPU, CHUNK has the share GPU_CHUNK_SHARE
#: of the workspace. Both parts must be large enough to fill the card, and few chunks mean few launches. On a CPU, both
#: parts should stay in the last-level cache. CPU_WIDE_BYTES is the bound for scores that keeps them there. It applies
#: to query tiles of more than ``NARROW`` query tokens (see ``runtime.extend.tiles``). For narrower query tiles, a
#: larger bound is faster, because fewer tiles save more time than the cache does (docs/performance.md).
CPU_CHUNK_BYTES, CPU_SEGMENT_BYTES, CPU_WIDE_BYTES = 8 * MIB, 32 * MIB, 16 * MIB
GPU_CHUNK_SHARE = 1 / 2

#: The amount of padding that takes as long to process as one more tile, as bytes of K or V and as a number of
#: floating-point operations. A tile costs 40 to 50 ATen calls: about 150 us on a CPU, or about 1 ms of launches on a
#: GPU.
CPU_PADDING_BYTES, GPU_PADDING_BYTES = 1 * MIB, 256 * MIB
CPU_PADDING_OPERATIONS, GPU_PADDING_OPERATIONS = 30 * 10**6, 10**10


@dataclass(frozen=True)
class ExtendTorchPlan(TorchFigures):
    """The plan of a PyTorch extend kernel.

    A query tile is a run of query tokens of one sequence. A property in bytes is the size for one KV head, and for one
    query token if it depends on the number of query tokens.
    """

    variant: ExtendVariant

    @property
    def keys(self) -> int:
        """The number of tokens in a partition of the keys."""
        page = self.variant.block_size
        return max(1, KEYS // page) * page

    @property
    def cpu_tile(self) -> int:
        """The most query tokens in a query tile on a CPU."""
        return max(LEAST_TILE, CPU_ROWS // self.variant.gqa_ratio)

    @property
    def gpu_tile(self) -> int:
        """The most query tokens in a query tile on a GPU."""
        return max(LEAST_TILE, GPU_ROWS // self.variant.gqa_ratio)

    @property
    def group_row_bytes(self) -> int:
        """Bytes of one query token's query, or output, in the dtype of the call, for the query heads of one KV head."""
        return self.group_bytes // 4 * ITEM_BYTES[self.variant.dtype]

    @property
    def value_row_bytes(self) -> int:
        """Bytes of a row of V in a page: one element of the head for all tokens of the page."""
        return self.variant.block_size * self.variant.cache_item_bytes

    @property
    def mask_bytes(self) -> int:
        """Bytes of the mask of a page of V. The same mask serves all KV heads."""
        return self.value_row_bytes

    @property
    def mask_words(self) -> int:
        """The number of 8-byte words in the mask of a page of V."""
        return self.mask_bytes // 8

    @cached_property
    def cpu(self) -> ExtendBudget:
        """The bounds of the workspace on a CPU, which keep the workspace within the CPU's caches."""
        chunk = min(CPU_CHUNK_BYTES, self.workspace_bytes // 2)
        segment = min(CPU_SEGMENT_BYTES, self.workspace_bytes - chunk)
        return self._budget(self.cpu_tile, chunk, segment, CPU_WIDE_BYTES, CPU_PADDING_BYTES, CPU_PADDING_OPERATIONS)

    @cached_property
    def gpu(self) -> ExtendBudget:
        """The bounds of the workspace on a GPU, which add up to the workspace limit of the spec."""
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
        """The smallest workspace in bytes: enough for one partition and one query token, with ``kv_heads`` KV heads."""
        budget, pages = self.gpu, self.keys // self.variant.block_size
        each = pages * (budget.chunk_page + budget.segment_page) + budget.segment_item + budget.row
        return kv_heads * each + pages * (budget.page + budget.row_page)

    def shape(self, kv_heads: int) -> Shape:
        """The sizes that determine how a call is split into query tiles."""
        return Shape(kv_heads, self.keys, self.variant.block_size, self.variant.sliding_window)

    def calls(self, num_seqs: int, tokens: int, max_query_len: int, max_seq_len: int, kv_heads: int) -> int:
        """The number of ATen calls of one call of the operator on a CPU, not counting views.

        The call does not ask for lse. The host knows only the upper bounds ``max_query_len`` and ``max_seq_len`` of the
        lengths. ``tokens`` is the number of query tokens of all sequences.
        """
        group = self.cpu.bound(tokens, num_seqs, max_seq_len, self.shape(kv_heads), max_query_len)
        return self.calls_of((group,), kv_heads)

    def calls_of(self, groups: Sequence[Group], kv_heads: int) -> int:
        """The number of ATen calls of one call of the operator that is split into ``groups``, not counting views.

        The call does not ask for lse. The numbers must match the code in templates/torch/extend.py.j2,
        runtime/extend/rows.py and runtime/state.py. Generated tests count the calls.
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
        """The number of ATen calls that gather the values of a tile: one for each item, or two for each chunk."""
        grains = kv_heads * self.page_bytes // (8 if self.value_row_bytes % 16 else 16)
        return tile.items if gathers_items(tile, grains) else 2 * -(-tile.items // tile.chunk)

    def figures(self) -> dict[str, int | float | str | None]:
        """The numbers about the PyTorch kernel that ``pav2gen list`` shows, by column."""
        return {"query_tile": self.gpu_tile}
