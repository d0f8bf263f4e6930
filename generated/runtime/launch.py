"""Launches a CUDA kernel through its C interface: the arguments, the workspace, the stream, the errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch

from .call import Call, Scratch
from .select import MOST_BLOCKS

VERSION = 1

#: Negative codes of an entry function (runtime/cuda/pav2_args.h); positive ones are CUDA's.
CODES = {-1: "the library was built from other sources than this package; compile it again"}


class Args(ctypes.Structure):
    """``Pav2Args`` of runtime/cuda/pav2_args.h, field by field."""

    _fields_ = (
        *((name, c_int32) for name in ("version", "size")),
        *((name, c_void_p) for name in ("out", "query", "key_cache", "value_cache", "block_tables", "seq_lens")),
        *((name, c_void_p) for name in ("alibi_slopes", "k_scale_ptr", "v_scale_ptr")),
        *((name, c_void_p) for name in ("partial_out", "partial_m", "partial_z")),
        *((name, c_void_p) for name in ("exp_sums", "max_logits", "tmp_out")),
        *((name, c_int64) for name in ("query_stride", "key_page_stride", "key_head_stride")),
        *((name, c_int64) for name in ("value_page_stride", "value_head_stride", "table_stride")),
        *((f"sums_{name}_stride", c_int64) for name in ("seq", "head", "part")),
        *((f"maxima_{name}_stride", c_int64) for name in ("seq", "head", "part")),
        *((f"tmp_{name}_stride", c_int64) for name in ("seq", "head", "part", "dim")),
        *((name, c_int32) for name in ("num_seqs", "num_heads", "num_kv_heads", "max_pages", "max_seq_len")),
        ("partitions", c_int32),
        *((name, c_float) for name in ("scale", "k_scale", "v_scale")),
        *((name, c_int32) for name in ("tp_rank", "local_blocks", "vert_stride")),
        *((name, c_int32) for name in ("sparse_block_size", "head_sliding_step")),
    )


def allocate(count: int, device: torch.device) -> torch.Tensor:
    """``count`` float32, uninitialised: the workspace of a launch."""
    return torch.empty(count, dtype=torch.float32, device=device)


def launch(
    function: Callable[..., int],
    call: Call,
    partition_size: int,
    workspace_bytes: int,
    explain: Callable[[int], str],
    allocate: Callable[[int, torch.device], torch.Tensor] = allocate,
) -> None:
    """Run an entry function on a checked call, on the current stream of the call's device.

    The partials of as many sequences as fit ``workspace_bytes`` are held at once. ``explain`` makes a sentence of an
    error code. Raises RuntimeError with it if a launch fails.
    """
    partitions = -(-call.max_seq_len // partition_size)
    for part in tiles(call, partitions, workspace_bytes):
        seqs, heads, head_size = part.query.shape
        count = seqs * heads * partitions if partitions > 1 else 0
        partials = allocate(count * (head_size + 2), call.query.device)
        args = arguments(part, partitions, partials)
        with device_of(call.query) as stream:
            code = function(ctypes.byref(args), c_void_p(stream))
        if code:
            raise RuntimeError(f"paged_attention_v2: {CODES.get(code) or explain(code)}")


def tiles(call: Call, partitions: int, workspace_bytes: int) -> Iterator[Call]:
    """The call in parts of consecutive sequences, with at most ``workspace_bytes`` of partials, or one alone."""
    seqs, heads, head_size = call.query.shape
    each = 4 * heads * partitions * (head_size + 2) if partitions > 1 else 1
    rows = max(1, min(seqs, workspace_bytes // each, MOST_BLOCKS))
    for first in range(0, seqs, rows):
        span = slice(first, first + rows)
        yield call._replace(
            out=call.out[span],
            query=call.query[span],
            block_tables=call.block_tables[span],
            seq_lens=call.seq_lens[span],
            scratch=call.scratch and Scratch(*(tensor[span] for tensor in call.scratch)),
        )


def arguments(call: Call, partitions: int, partials: torch.Tensor) -> Args:
    """The C struct of a call. ``partials`` holds, one after the other, o, m and z of every head and partition."""
    seqs, heads, head_size = call.query.shape
    args = Args(version=VERSION, size=ctypes.sizeof(Args), num_seqs=seqs, num_heads=heads, partitions=partitions)
    args.num_kv_heads, args.max_pages = call.key_cache.shape[1], call.block_tables.shape[1]
    args.max_seq_len, args.scale = call.max_seq_len, call.scale
    for name in ("out", "query", "key_cache", "value_cache", "block_tables", "seq_lens", "alibi_slopes"):
        setattr(args, name, pointer(getattr(call, name)))
    args.query_stride, args.table_stride = call.query.stride(0), call.block_tables.stride(0)
    args.key_page_stride, args.key_head_stride = call.key_cache.stride()[:2]
    args.value_page_stride, args.value_head_stride = call.value_cache.stride()[:2]
    for name in ("k_scale", "v_scale"):
        scale = getattr(call, name)
        on_device = isinstance(scale, torch.Tensor)
        setattr(args, f"{name}_ptr" if on_device else name, pointer(scale) if on_device else scale)
    if partials.numel():
        rows = seqs * heads * partitions
        o, m, z = partials.split([rows * head_size, rows, rows])
        args.partial_out, args.partial_m, args.partial_z = pointer(o), pointer(m), pointer(z)
    set_scratch(args, call.scratch)
    if call.sparse is not None:
        args.tp_rank, args.sparse_block_size = call.sparse.tp_rank, call.sparse.block_size
        args.local_blocks, args.vert_stride = call.sparse.local_blocks, call.sparse.vert_stride
        args.head_sliding_step = call.sparse.head_sliding_step
    return args


def set_scratch(args: Args, scratch: Scratch | None) -> None:
    """Pointers and strides of the caller's scratch; null pointers where there is none."""
    if scratch is None:
        return
    for name, short in (("exp_sums", "sums"), ("max_logits", "maxima"), ("tmp_out", "tmp")):
        tensor = getattr(scratch, name)
        setattr(args, name, pointer(tensor))
        for axis, stride in zip(("seq", "head", "part", "dim"), tensor.stride()):
            setattr(args, f"{short}_{axis}_stride", stride)


def pointer(tensor: torch.Tensor | None) -> int | None:
    """The address of a tensor's first element; None for none."""
    return None if tensor is None else tensor.data_ptr()


class device_of:
    """Within it, a tensor's device is the current one; gives the handle of its current stream, None on a CPU."""

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
