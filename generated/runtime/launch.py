"""Launches a CUDA decode kernel through the kernel's C interface.

The function ``launch`` fills a C struct with the arguments, passes the current CUDA stream, and raises an exception if
the launch fails. The function ``workspace`` provides the memory for the kernel's partial results, that is, for the
results of single partitions.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Iterator
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch

from .attention.tiling import launched_partitions
from .call import Call, Scratch
from .choice.select import MOST_BLOCKS

VERSION = 2

#: The most parameter tensors that a modification may have.
MOST_TENSORS = 4

#: Messages for the negative error codes of an entry function (runtime/cuda/pav2_args.h). Positive codes are error codes
#: of CUDA.
CODES = {-1: "the library was built from other sources than this package; compile it again"}


class Args(ctypes.Structure):
    """The C struct ``Pav2Args`` of runtime/cuda/pav2_args.h, with the same fields in the same order."""

    _fields_ = (
        *((name, c_int32) for name in ("version", "size")),
        *((name, c_void_p) for name in ("out", "query", "key_cache", "value_cache", "block_tables", "seq_lens")),
        *((name, c_void_p) for name in ("alibi_slopes", "sinks")),
        ("tensors", c_void_p * MOST_TENSORS),
        *((name, c_void_p) for name in ("lse", "k_scale_ptr", "v_scale_ptr")),
        *((name, c_void_p) for name in ("partial_out", "partial_m", "partial_z")),
        *((name, c_void_p) for name in ("exp_sums", "max_logits", "tmp_out")),
        *((name, c_int64) for name in ("query_stride", "key_page_stride", "key_head_stride")),
        *((name, c_int64) for name in ("value_page_stride", "value_head_stride", "table_stride")),
        *((f"sums_{name}_stride", c_int64) for name in ("seq", "head", "part")),
        *((f"maxima_{name}_stride", c_int64) for name in ("seq", "head", "part")),
        *((f"tmp_{name}_stride", c_int64) for name in ("seq", "head", "part", "dim")),
        *((name, c_int32) for name in ("num_seqs", "num_heads", "num_kv_heads", "max_pages", "max_seq_len")),
        *((name, c_int32) for name in ("partitions", "scratch_partitions")),
        *((name, c_float) for name in ("scale", "k_scale", "v_scale")),
        *((name, c_int32) for name in ("k_scale_stride", "v_scale_stride")),
        *((name, c_int32) for name in ("tp_rank", "local_blocks", "vert_stride")),
        *((name, c_int32) for name in ("sparse_block_size", "head_sliding_step")),
    )


#: This module caches a prepared C struct for each layout of a call (see ``check.layout_of``). When the cache has this
#: many structs, it is emptied.
MOST_LAYOUTS = 1024

_shapes: dict[Hashable, Args] = {}  # the structs without addresses, by layout of the call


class _Held(threading.local):
    """The memory that one thread keeps for the partial results of launches: one tensor for each device and stream."""

    def __init__(self) -> None:
        self.by_stream: dict[tuple[torch.device, int | None], torch.Tensor] = {}


_held = _Held()


def workspace(count: int, device: torch.device, stream: int | None) -> torch.Tensor:
    """Return memory for the partial results of one launch: an uninitialised float32 tensor of at least ``count``
    elements.

    No other launch uses the tensor before this launch has finished. A thread uses one tensor for all its launches on a
    stream, because these launches run one after the other. Different threads use different tensors, because launches of
    different threads can overlap.

    During the capture of a CUDA graph, each launch gets a new tensor, which the graph keeps alive. The module frees the
    tensor of other launches when a later launch needs a larger tensor. A captured graph must not use such a tensor,
    because the graph may be replayed after the tensor was freed.
    """
    if stream is not None and torch.cuda.is_current_stream_capturing():
        return torch.empty(count, dtype=torch.float32, device=device)
    held = _held.by_stream
    found = held.get((device, stream))
    if found is None or found.shape[0] < count:
        found = held[device, stream] = torch.empty(count, dtype=torch.float32, device=device)
    return found


def launch(
    function: Callable[..., int],
    call: Call,
    partition_size: int,
    workspace_bytes: int,
    explain: Callable[[int], str],
    workspace: Callable[[int, torch.device, int | None], torch.Tensor] = workspace,
    layout: Hashable | None = None,
) -> None:
    """Launch a CUDA kernel for a checked call, on the current stream of the query's device.

    The partial results of a call are the softmax states of its partitions: maximum, sum and output. If the partial
    results need more than ``workspace_bytes`` bytes, the function splits the call into several launches. Raises
    RuntimeError if a launch fails.

    function: the kernel's entry function in the CUDA library, which returns an error code, or 0 for success.
    partition_size: the number of tokens in a partition.
    explain: a function that turns an error code that is not in ``CODES`` into a sentence for the exception.
    workspace: a function that provides the memory for partial results, with the signature of this module's
    ``workspace``.
    layout: an object that identifies the call's layout (see ``check.Layouts``), or None. Calls with the same layout
    share a prepared C struct.
    """
    every = -(-call.max_seq_len // partition_size)
    partitions = launched_partitions(call.max_seq_len, partition_size, call.sliding_window)
    for part in tiles(call, partitions, workspace_bytes):
        seqs, heads, head_size = part.query.shape
        count = seqs * heads * partitions * (head_size + 2) if partitions > 1 else 0
        args = shape_arguments(part, layout if part is call else None)
        with device_of(call.query) as stream:
            partials = workspace(count, call.query.device, stream) if count else None
            set_addresses(args, part, partitions, partials)
            args.scratch_partitions = every
            code = function(ctypes.byref(args), c_void_p(stream))
        if code:
            raise RuntimeError(f"paged_attention_v2: {CODES.get(code) or explain(code)}")


def tiles(call: Call, partitions: int, workspace_bytes: int) -> Iterator[Call]:
    """Split a call into smaller calls whose partial results fit in ``workspace_bytes`` bytes each.

    Each smaller call has at least one sequence, and its sequences are consecutive in the original call. A smaller call
    with a single sequence may exceed ``workspace_bytes``.

    partitions: the number of partitions that the kernel computes for each sequence.
    """
    seqs, heads, head_size = call.query.shape
    each = 4 * heads * partitions * (head_size + 2) if partitions > 1 else 1
    rows = max(1, min(seqs, workspace_bytes // each, MOST_BLOCKS))
    if rows >= seqs:
        yield call
        return
    for first in range(0, seqs, rows):
        span = slice(first, first + rows)
        yield call._replace(
            out=call.out[span],
            query=call.query[span],
            block_tables=call.block_tables[span],
            seq_lens=call.seq_lens[span],
            lse=None if call.lse is None else call.lse[span],
            scratch=call.scratch and Scratch(*(tensor[span] for tensor in call.scratch)),
        )


def shape_arguments(call: Call, layout: Hashable | None = None) -> Args:
    """Make the C struct of a call's arguments, and set its sizes and strides. ``set_addresses`` sets the other fields.

    layout: an object that identifies the call's layout, or None. If an earlier call had the same layout, the function
    returns a copy of that call's struct.
    """
    shape = None if layout is None else (layout, call.scratch is None)  # a scratch that is too small is None here
    if shape is not None and (made := _shapes.get(shape)) is not None:
        return Args.from_buffer_copy(made)
    args = Args(version=VERSION, size=ctypes.sizeof(Args))
    args.num_seqs, args.num_heads = call.query.shape[:2]
    args.num_kv_heads, args.max_pages = call.key_cache.shape[1], call.block_tables.shape[1]
    args.query_stride, args.table_stride = call.query.stride(0), call.block_tables.stride(0)
    args.key_page_stride, args.key_head_stride = call.key_cache.stride()[:2]
    args.value_page_stride, args.value_head_stride = call.value_cache.stride()[:2]
    for name, short in (("exp_sums", "sums"), ("max_logits", "maxima"), ("tmp_out", "tmp")) if call.scratch else ():
        for axis, stride in zip(("seq", "head", "part", "dim"), getattr(call.scratch, name).stride()):
            setattr(args, f"{short}_{axis}_stride", stride)
    if call.sparse is not None:
        args.tp_rank, args.sparse_block_size = call.sparse.tp_rank, call.sparse.block_size
        args.local_blocks, args.vert_stride = call.sparse.local_blocks, call.sparse.vert_stride
        args.head_sliding_step = call.sparse.head_sliding_step
    if shape is not None:
        if len(_shapes) >= MOST_LAYOUTS:
            _shapes.clear()
        _shapes[shape] = Args.from_buffer_copy(args)
    return args


def set_addresses(args: Args, call: Call, partitions: int, partials: torch.Tensor | None) -> None:
    """Set the fields of ``args`` that can differ between calls of the same layout, such as addresses, lengths and
    scales.

    partitions: the number of partitions that the kernel computes for each sequence.
    partials: float32 memory for the softmax state (output, maximum and sum) of every sequence, head and partition, or
    None if there is only one partition.
    """
    args.max_seq_len, args.partitions, args.scale = call.max_seq_len, partitions, call.scale
    args.out, args.query = call.out.data_ptr(), call.query.data_ptr()
    args.key_cache, args.value_cache = call.key_cache.data_ptr(), call.value_cache.data_ptr()
    args.block_tables, args.seq_lens = call.block_tables.data_ptr(), call.seq_lens.data_ptr()
    args.alibi_slopes, args.sinks, args.lse = map(pointer, (call.alibi_slopes, call.sinks, call.lse))
    for place, tensor in enumerate(call.tensors):
        args.tensors[place] = tensor.data_ptr()
    if isinstance(call.k_scale, torch.Tensor):
        args.k_scale_ptr, args.k_scale_stride = call.k_scale.data_ptr(), int(call.k_scale.numel() > 1)
    else:
        args.k_scale = call.k_scale
    if isinstance(call.v_scale, torch.Tensor):
        args.v_scale_ptr, args.v_scale_stride = call.v_scale.data_ptr(), int(call.v_scale.numel() > 1)
    else:
        args.v_scale = call.v_scale
    if partials is not None:
        seqs, heads, head_size = call.query.shape
        rows, start = 4 * seqs * heads * partitions, partials.data_ptr()
        args.partial_out, args.partial_m = start, start + rows * head_size
        args.partial_z = start + rows * (head_size + 1)
    if call.scratch is not None:
        exp_sums, max_logits, tmp_out = call.scratch
        args.exp_sums, args.max_logits = exp_sums.data_ptr(), max_logits.data_ptr()
        args.tmp_out = tmp_out.data_ptr()


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a tensor's first element, or None if ``tensor`` is None."""
    return None if tensor is None else tensor.data_ptr()


class device_of:
    """A context manager that makes a tensor's device the current device, and yields the handle of the current stream.

    For a CPU tensor, the context manager changes nothing and yields None.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._guard = torch.cuda.device(tensor.device) if tensor.is_cuda else None
        self._tensor = tensor

    def __enter__(self) -> int | None:
        if self._guard is None:
            return None
        self._guard.__enter__()
        return int(torch.cuda.current_stream(self._tensor.device).cuda_stream)

    def __exit__(self, *error: object) -> None:
        if self._guard is not None:
            self._guard.__exit__(*error)
