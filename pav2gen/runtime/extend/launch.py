"""Launches a CUDA extend kernel through the C interface of the compiled library.

The module fills the C struct of arguments, divides the query tokens into query tiles, and allocates the workspace. A
query tile is a set of consecutive query tokens of one sequence that a thread block processes together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch

from ..attention.tiling import partitions_reached
from ..choice.dispatch_row import MIB, Row
from ..choice.select import MOST_BLOCKS
from ..launch import CODES, MOST_TENSORS, device_of, pointer
from ..launch import workspace as held_workspace
from .call import ExtendCall

VERSION = 1


class ExtendArgs(ctypes.Structure):
    """The C struct ``Pav2ExtendArgs`` of runtime/cuda/pav2_extend.h, with the same fields in the same order."""

    _fields_ = (
        *((name, c_int32) for name in ("version", "size")),
        *((name, c_void_p) for name in ("out", "query", "key_cache", "value_cache", "block_tables")),
        *((name, c_void_p) for name in ("query_start_loc", "seq_lens", "alibi_slopes", "sinks")),
        ("tensors", c_void_p * MOST_TENSORS),
        *((name, c_void_p) for name in ("lse", "k_scale_ptr", "v_scale_ptr")),
        *((name, c_void_p) for name in ("partial_out", "partial_m", "partial_z")),
        *((name, c_int64) for name in ("query_stride", "key_page_stride", "key_head_stride")),
        *((name, c_int64) for name in ("value_page_stride", "value_head_stride", "table_stride")),
        *((name, c_int32) for name in ("num_tokens", "num_seqs", "num_heads", "num_kv_heads", "max_pages")),
        *((name, c_int32) for name in ("max_query_len", "max_seq_len", "partitions")),
        *((name, c_int32) for name in ("first_tile", "tiles", "tiles_per_seq")),
        *((name, c_float) for name in ("scale", "k_scale", "v_scale")),
        *((name, c_int32) for name in ("k_scale_stride", "v_scale_stride")),
    )


def launch(
    function: Callable[..., int],
    call: ExtendCall,
    row: Row,
    explain: Callable[[int], str],
    workspace: Callable[[int, torch.device, int | None], torch.Tensor] = held_workspace,
) -> None:
    """Run a CUDA kernel on a call with checked arguments, on the current stream of the call's device.

    To keep the partial results of a launch within ``row.workspace_mib``, the function may launch the kernel several
    times, each time for some of the query tiles. Raises RuntimeError if a launch fails, or if the call has too many
    partitions for a CUDA grid.

    function: the kernel's entry function in the library, which returns 0 or an error code.
    row: the kernel's row in the dispatch table.
    explain: a function that takes an error code, and returns a sentence for the message of the error.
    workspace: a function that allocates memory for the partial results, as ``runtime.launch.workspace`` does.
    """
    args, partitions = arguments(call), partitions_of(call, row)
    if partitions > MOST_BLOCKS:
        raise RuntimeError(
            f"paged_attention_extend: max_seq_len is {call.max_seq_len}, but a CUDA grid can have "
            f"at most {MOST_BLOCKS} partitions of {row.partition_size} tokens; pass a smaller max_seq_len"
        )
    tiles, args.tiles_per_seq = tiles_of(call, row.tile_tokens)
    args.partitions = partitions
    heads, head_size = call.query.shape[1:]
    rows = row.tile_tokens * heads  # softmax states of a tile and partition: one for each token and query head
    floats = rows * partitions * (head_size + 2) if partitions > 1 else 0
    most = min(MOST_BLOCKS // row.tile_tokens, row.workspace_mib * MIB // (4 * floats) if floats else MOST_BLOCKS)
    step = max(1, min(tiles, most))
    with device_of(call.query) as stream:
        if floats:
            count = step * rows * partitions
            args.partial_out = start = workspace(step * floats, call.query.device, stream).data_ptr()
            args.partial_m, args.partial_z = start + 4 * count * head_size, start + 4 * count * (head_size + 1)
        for first in range(0, tiles, step):
            args.first_tile, args.tiles = first, min(step, tiles - first)
            code = function(ctypes.byref(args), c_void_p(stream))
            if code:
                raise RuntimeError(f"paged_attention_extend: {CODES.get(code) or explain(code)}")


def tiles_of(call: ExtendCall, tile_tokens: int) -> tuple[int, int]:
    """Choose how to number the query tiles of a call. Return the number of tiles in the call and the number per
    sequence.

    There are two numberings, and the function chooses the numbering with fewer tiles:

    * Every sequence gets the same number of tiles, enough for ``max_query_len`` tokens. Sequences with fewer query
      tokens leave some of their tiles unused.

    * Sequences with fewer query tokens get fewer tiles. The number of a sequence's first tile follows from the index of
      its first query token (see ``packed_tile`` in pav2_extend.cuh). With this numbering, the second returned number is
      0.

    The choice uses only ``max_query_len`` and the shapes of tensors, which the host knows.

    tile_tokens: the number of query tokens in a tile.
    """
    tokens, seqs = call.query.shape[0], call.seq_lens.shape[0]
    each, packed = -(-call.max_query_len // tile_tokens), tokens // tile_tokens + seqs
    return (seqs * each, each) if seqs * each <= packed else (packed, 0)


def partitions_of(call: ExtendCall, row: Row) -> int:
    """Return the largest number of partitions with keys to which the query tokens of one query tile can attend."""
    window = call.sliding_window
    reach = None if window is None else window + min(row.tile_tokens, call.max_query_len) - 1
    return partitions_reached(call.max_seq_len, row.partition_size, reach)


def arguments(call: ExtendCall) -> ExtendArgs:
    """Make the C struct for the arguments of a call. ``launch`` sets the fields for tiles, partitions and workspace
    later.
    """
    args = ExtendArgs(version=VERSION, size=ctypes.sizeof(ExtendArgs), scale=call.scale)
    args.num_tokens, args.num_heads = call.query.shape[:2]
    args.num_seqs, args.max_pages = call.block_tables.shape
    args.num_kv_heads = call.key_cache.shape[1]
    args.max_query_len, args.max_seq_len = call.max_query_len, call.max_seq_len
    args.query_stride, args.table_stride = call.query.stride(0), call.block_tables.stride(0)
    args.key_page_stride, args.key_head_stride = call.key_cache.stride()[:2]
    args.value_page_stride, args.value_head_stride = call.value_cache.stride()[:2]
    for name in ("out", "query", "key_cache", "value_cache", "block_tables", "query_start_loc", "seq_lens"):
        setattr(args, name, getattr(call, name).data_ptr())
    args.alibi_slopes, args.sinks, args.lse = map(pointer, (call.alibi_slopes, call.sinks, call.lse))
    for place, tensor in enumerate(call.tensors):
        args.tensors[place] = tensor.data_ptr()
    for name in ("k_scale", "v_scale"):
        scale = getattr(call, name)
        if isinstance(scale, torch.Tensor):
            setattr(args, f"{name}_ptr", scale.data_ptr())
            setattr(args, f"{name}_stride", int(scale.numel() > 1))
        else:
            setattr(args, name, scale)
    return args
