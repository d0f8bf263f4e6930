"""Checks the arguments of an extend call. The operator calls ``check`` before it writes to ``out`` or ``lse``."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import torch

from .. import check as checks
from ..check import dtype_name, shape_of
from ..choice.key import Key
from .call import ExtendCall

NAME = "paged_attention_extend"
NEEDED = ("out", "query", "key_cache", "value_cache", "block_tables", "query_start_loc", "seq_lens")

_fail = partial(checks.fail, operator=NAME)


def check(call: ExtendCall, kv_cache_dtype: str) -> Key:
    """Check all arguments of an extend call, and return the key by which the dispatch table finds the kernel for the
    call.

    The function does not check the elements of tensors. Raises ValueError for the first argument that is wrong.
    """
    name = checks.kv_dtype(kv_cache_dtype, NAME)
    for field in NEEDED:
        checks.check_tensor(field, getattr(call, field), NAME)
    checks.check_query(call.query, call.out, "tokens", NAME)
    checks.check_cache(call.query, call.key_cache, call.value_cache, name, NAME)
    check_sequences(call)
    tokens, heads, head_size = call.query.shape
    checks.check_alibi(call.query, call.alibi_slopes, NAME)
    checks.check_factor(call.scale, NAME)
    checks.check_limits(call.softcap, call.sliding_window, NAME)
    checks.check_numbers("sinks", call.sinks, (heads,), NAME)
    checks.check_numbers("lse", call.lse, (tokens, heads), NAME)
    for field in ("k_scale", "v_scale"):
        if isinstance(scale := getattr(call, field), torch.Tensor):
            checks.check_scale(field, scale, call.key_cache.shape[1], NAME)
    checks.check_device(call.query.device, call._asdict(), NAME)
    return Key(
        head_size=head_size,
        gqa_ratio=heads // call.key_cache.shape[1],
        block_size=call.key_cache.shape[3],
        dtype=dtype_name(call.query.dtype),
        kv_cache_dtype=name,
        alibi=call.alibi_slopes is not None,
        blocksparse=False,
        softcap=None if call.softcap is None else float(call.softcap),
        sliding_window=call.sliding_window,
        sinks=call.sinks is not None,
        modification=call.modification,
    )


def check_sequences(call: ExtendCall) -> None:
    """Raise ValueError unless the arguments that describe the sequences of a call have the following forms.

    block_tables: int32 [sequences, any number of blocks], with contiguous rows.
    seq_lens: contiguous int32 [sequences].
    query_start_loc: contiguous int32 [sequences + 1].
    max_query_len, max_seq_len: not negative.
    """
    tables, starts, lengths = call.block_tables, call.query_start_loc, call.seq_lens
    if lengths.dim() != 1 or lengths.dtype != torch.int32 or not lengths.is_contiguous():
        _fail(f"seq_lens must be contiguous int32 [seqs], got {shape_of(lengths)} with strides {lengths.stride()}")
    seqs = lengths.shape[0]
    if tables.dim() != 2 or tables.shape[0] != seqs or tables.dtype != torch.int32:
        _fail(f"block_tables must be int32 [{seqs}, max blocks] for {seqs} seq_lens, got {shape_of(tables)}")
    if tables.shape[1] > 1 and tables.stride(1) != 1:
        _fail(f"a row of block_tables must be contiguous, got strides {tables.stride()}")
    if starts.shape != (seqs + 1,) or starts.dtype != torch.int32 or not starts.is_contiguous():
        wanted = f"contiguous int32 [{seqs + 1}] for {seqs} seq_lens: the first row of each sequence, then the last end"
        _fail(f"query_start_loc must be {wanted}; got {shape_of(starts)} with strides {starts.stride()}")
    for name in ("max_query_len", "max_seq_len"):
        if getattr(call, name) < 0:
            _fail(f"{name} must not be negative, got {getattr(call, name)}")


def check_starts(starts: torch.Tensor) -> None:
    """Raise ValueError if the values of ``query_start_loc`` decrease. Do nothing if this tensor is not on the CPU.

    starts: the argument ``query_start_loc`` of a call.
    """
    if starts.device.type != "cpu":
        return
    values = starts.tolist()
    if values == sorted(values):
        return
    place = next(i for i in range(1, len(values)) if values[i] < values[i - 1])
    _fail(f"query_start_loc must not fall, and entry {place} is {values[place]} after {values[place - 1]}")


def layout_of(call: ExtendCall, kv_cache_dtype: str) -> Hashable | None:
    """Return the layout of a call, that is, a tuple of all properties that ``check`` tests, such as shapes and strides.

    If a call passes ``check``, every call with an equal layout passes ``check`` too. The result is None if an argument
    that must be a tensor is not a tensor. For such a call, ``check`` raises ValueError.
    """
    optional = (call.alibi_slopes, call.sinks, call.lse, *call.tensors, call.k_scale, call.v_scale)
    try:
        return (
            *((t.shape, t.stride(), t.dtype, t.device) for t in (getattr(call, field) for field in NEEDED)),
            *((t.shape, t.stride(), t.dtype, t.device) if isinstance(t, torch.Tensor) else None for t in optional),
            (call.key_cache.data_ptr() | call.value_cache.data_ptr()) % 16,
            *(call.max_query_len < 0, call.max_seq_len < 0, call.softcap, call.sliding_window, call.modification),
            *(checks.is_float32(call.scale), kv_cache_dtype),
        )
    except AttributeError:
        return None
