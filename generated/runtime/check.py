"""Checks the arguments of a decode call before a kernel runs.

The operator writes to no tensor before all checks have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .call import BlockSparse, Call, Scratch
from .choice.dispatch_row import Modification
from .choice.key import KV_ALIASES, Key

if TYPE_CHECKING:
    from .extend.call import ExtendCall

DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
NEEDED = ("out", "query", "key_cache", "value_cache", "block_tables", "seq_lens")
KV_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "int8")

DECODE = "paged_attention_v2"

#: The smallest positive number of float32, in which kernels compute, and the largest one.
SMALLEST_FLOAT32, LARGEST_FLOAT32 = 2.0**-149, (2 - 2.0**-23) * 2.0**127

#: An operator remembers up to this many layouts of calls that passed the checks. Before it adds another one, it forgets
#: all of them.
MOST_LAYOUTS = 1024


def fail(sentence: str, operator: str = DECODE) -> NoReturn:
    """Raise ValueError with the message ``<operator>: <sentence>``."""
    raise ValueError(f"{operator}: {sentence}")


def shape_of(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype and shape as text for an error message, for example ``float16 [8, 32, 128]``."""
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"


def dtype_name(dtype: torch.dtype | str) -> str:
    """Return the name of a dtype without the prefix "torch.", for example ``float16`` for torch.float16.

    dtype: a torch.dtype, or its name as text.
    """
    return str(dtype).removeprefix("torch.")


def kv_dtype(name: str, operator: str = DECODE) -> str:
    """Return the full name of a KV cache dtype: ``fp8_e4m3`` for ``fp8``, and ``name`` itself for any other dtype.

    Raises ValueError if ``name`` is not in ``KV_DTYPES``.
    """
    if name not in KV_DTYPES:
        fail(f"kv_cache_dtype {name!r} is not one of {', '.join(KV_DTYPES)}", operator)
    return KV_ALIASES.get(name, name)


def storage_dtype(kv_cache_dtype: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the cache tensors: uint8 for an fp8 cache, int8 for an int8 cache, and ``dtype`` for
    ``auto``.

    dtype: the dtype of the query.
    """
    return {"auto": dtype, "int8": torch.int8}.get(kv_cache_dtype, torch.uint8)


def check(call: Call, kv_cache_dtype: str) -> Key:
    """Check all arguments of a decode call, and return the call's kernel key.

    The kernel key consists of the properties that select a kernel, such as the head size and the dtype. Raises
    ValueError for the first wrong argument.
    """
    name = kv_dtype(kv_cache_dtype)
    check_presence(call)
    check_query(call.query, call.out)
    check_cache(call.query, call.key_cache, call.value_cache, name)
    check_tables(call.query, call.block_tables, call.seq_lens, call.max_seq_len)
    check_scratch(call.out, call.scratch)
    check_alibi(call.query, call.alibi_slopes)
    check_sparse(call.sparse, call.key_cache.shape[3])
    check_features(call)
    check_factor(call.scale)
    for field in ("k_scale", "v_scale"):
        if isinstance(scale := getattr(call, field), torch.Tensor):
            check_scale(field, scale, call.key_cache.shape[1])
    check_devices(call)
    return Key(
        head_size=call.query.shape[2],
        gqa_ratio=call.query.shape[1] // call.key_cache.shape[1],
        block_size=call.key_cache.shape[3],
        dtype=dtype_name(call.query.dtype),
        kv_cache_dtype=name,
        alibi=call.alibi_slopes is not None,
        blocksparse=call.sparse is not None,
        softcap=None if call.softcap is None else float(call.softcap),
        sliding_window=call.sliding_window,
        sinks=call.sinks is not None,
        modification=call.modification,
    )


def layout_of(call: Call, kv_cache_dtype: str) -> Hashable | None:
    """Return the layout of a call: a tuple of all argument properties that ``check`` tests, such as shapes and strides.

    If one call passes the checks, every other call with an equal layout passes the checks too.

    The function returns None if an argument that must be a tensor has another type. ``check`` raises ValueError for an
    argument of the wrong type.
    """
    try:
        return (
            *map(_layout, (call.query, call.out, call.key_cache, call.value_cache, call.block_tables, call.seq_lens)),
            *map(_layout, call.scratch or ()),
            *[_optional(tensor) for tensor in (call.alibi_slopes, call.sinks, call.lse, *call.tensors)],
            *[_optional(scale) if isinstance(scale, torch.Tensor) else True for scale in (call.k_scale, call.v_scale)],
            (call.key_cache.data_ptr() | call.value_cache.data_ptr()) % 16,
            *(call.max_seq_len < 0, call.sparse, call.softcap, call.sliding_window, call.modification, kv_cache_dtype),
            is_float32(call.scale),
        )
    except AttributeError:
        return None


class Layouts:
    """Remembers the layouts of calls that passed the checks. A later call with a remembered layout skips the checks.

    check: a function of a call and its kv_cache_dtype that returns the call's kernel key or raises ValueError.
    layout_of: a function of a call and its kv_cache_dtype that returns the call's layout, or None for a call that must
    always be checked. The layout contains all properties that ``check`` tests.
    """

    def __init__(self, check: Callable[[Any, str], Key], layout_of: Callable[[Any, str], Hashable | None]) -> None:
        self._check, self._layout_of = check, layout_of
        self._checked: dict[Hashable, tuple[Key, object]] = {}

    def check(self, call: Any, kv_cache_dtype: str) -> tuple[Key, object]:
        """Return a call's kernel key, and an object that identifies the call's layout.

        Calls with equal layouts get the same object, unless the cache of layouts was emptied between the calls. Raises
        ValueError if an argument of the call is wrong.
        """
        layout = self._layout_of(call, kv_cache_dtype)
        if layout is not None and (found := self._checked.get(layout)):
            return found
        found = self._check(call, kv_cache_dtype), object()
        if len(self._checked) >= MOST_LAYOUTS:
            self._checked.clear()
        if layout is not None:
            self._checked[layout] = found
        return found


def _layout(tensor: torch.Tensor) -> Hashable:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _optional(tensor: torch.Tensor | None) -> Hashable:
    return None if tensor is None else _layout(tensor)


def check_presence(call: Call) -> None:
    """Raise ValueError if a required tensor argument of a call is not a tensor.

    torch's dispatcher would accept None for such an argument.
    """
    for name in NEEDED:
        check_tensor(name, getattr(call, name))
    for name, tensor in zip(Scratch._fields, call.scratch or ()):
        check_tensor(name, tensor)


def check_tensor(name: str, value: object, operator: str = DECODE) -> None:
    """Raise ValueError unless ``value`` is a tensor.

    name: the argument's name in the error message.
    """
    if not isinstance(value, torch.Tensor):
        fail(f"{name} must be a tensor, got {value if value is None else type(value).__name__}", operator)


def check_int(name: str, value: Any, operator: str = DECODE) -> None:
    """Raise ValueError unless ``value`` is an int of at most 64 bits, or its method ``__index__`` returns such an int.

    name: the argument's name in the error message.
    """
    try:
        number = index(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for a tensor of several elements
        fail(f"{name} must be an int, got {described(value)}", operator)
    if not -(1 << 63) <= number < 1 << 63:
        fail(f"{name} must be an int of 64 bits, got {described(number)}", operator)


def check_number(name: str, value: Any, operator: str = DECODE) -> None:
    """Raise ValueError if ``value`` is a string or if float() does not convert ``value``.

    name: the argument's name in the error message.
    """
    try:
        float(value)
        converts = not isinstance(value, (str, bytes, bytearray))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        converts = False
    if not converts:
        fail(f"{name} must be a number, got {described(value)}", operator)


def check_text(name: str, value: object, operator: str = DECODE) -> None:
    """Raise ValueError unless ``value`` is a string.

    name: the argument's name in the error message.
    """
    if not isinstance(value, str):
        fail(f"{name} must be a text, got {described(value)}", operator)


def check_bool(name: str, value: object, operator: str = DECODE) -> None:
    """Raise ValueError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        fail(f"{name} must be True or False, got {described(value)}", operator)


def described(value: object) -> str:
    """Describe a value for an error message by its type. The description of a string or a number also contains the
    value.
    """
    if value is None:
        return "None"
    name = type(value).__name__
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return f"an {name} of {value.bit_length()} bits"
    return f"the {name} {value!r}" if isinstance(value, (str, int, float)) else f"a {name}"


def check_declared(
    key_cache: torch.Tensor, num_kv_heads: int | torch.Tensor, block_size: int, operator: str = DECODE
) -> None:
    """Raise ValueError unless num_kv_heads and block_size agree with the shape of key_cache.

    If num_kv_heads is a tensor, the function does not compare num_kv_heads with the shape. The vLLM fork for the
    BI-V100 GPU passes its ``head_mapping`` tensor as num_kv_heads.
    """
    check_tensor("key_cache", key_cache, operator)
    check_int("block_size", block_size, operator)
    if not isinstance(num_kv_heads, torch.Tensor):
        check_int("num_kv_heads", num_kv_heads, operator)
    if key_cache.dim() != 5:
        fail(f"key_cache must be [blocks, kv heads, head size / x, block size, x], got {shape_of(key_cache)}", operator)
    if not isinstance(num_kv_heads, torch.Tensor) and num_kv_heads != key_cache.shape[1]:
        fail(f"num_kv_heads is {num_kv_heads}, but key_cache is {shape_of(key_cache)}", operator)
    if block_size != key_cache.shape[3]:
        fail(f"block_size is {block_size}, but key_cache is {shape_of(key_cache)}", operator)


def check_query(query: torch.Tensor, out: torch.Tensor, rows: str = "seqs", operator: str = DECODE) -> None:
    """Raise ValueError if query or out has a wrong shape, dtype or stride.

    query must be [rows, heads, head size], and the heads of each row must be contiguous. out must be contiguous and
    have the shape and dtype of query.

    rows: the name of query's first dimension in error messages.
    """
    if query.dim() != 3 or query.dtype not in DTYPES:
        types = ", ".join(DTYPES.values())
        fail(f"query must be [{rows}, heads, head size] in {types}, got {shape_of(query)}", operator)
    if query.numel() and (query.stride(2) != 1 or query.stride(1) != query.shape[2]):
        fail(f"the heads of a row of query must be contiguous, got strides {query.stride()}", operator)
    if out.shape != query.shape or out.dtype != query.dtype:
        fail(f"out must be like query, {shape_of(query)}, got {shape_of(out)}", operator)
    if not out.is_contiguous():
        fail(f"out must be contiguous, got strides {out.stride()}", operator)


def check_cache(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    kv_cache_dtype: str,
    operator: str = DECODE,
) -> None:
    """Raise ValueError unless the two cache tensors have the dtype, shape, strides and alignment that kernels need.

    key_cache: [blocks, kv heads, head size / x, block size, x], where x is the number of elements in 16 bytes.
    value_cache: [blocks, kv heads, head size, block size]. ``check_pages`` states the required strides.
    """
    stored = storage_dtype(kv_cache_dtype, query.dtype)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache.dtype != stored:
            fail(
                f"{name} must be {dtype_name(stored)} for a {dtype_name(query.dtype)} query and kv_cache_dtype "
                f"{kv_cache_dtype}, got {shape_of(cache)}",
                operator,
            )
    x, head_size, heads = 16 // key_cache.element_size(), query.shape[2], query.shape[1]
    if key_cache.dim() != 5 or key_cache.shape[4] != x or key_cache.shape[2] * x != head_size:
        wanted = f"[blocks, kv heads, {head_size} / {x}, block size, {x}]"
        fail(f"key_cache must be {wanted}, got {shape_of(key_cache)}", operator)
    blocks, kv_heads, _, block, _ = key_cache.shape
    if value_cache.shape != (blocks, kv_heads, head_size, block):
        fail(f"value_cache must be {[blocks, kv_heads, head_size, block]}, got {shape_of(value_cache)}", operator)
    if not blocks:
        fail("key_cache has 0 blocks; a cache needs at least one", operator)
    if not kv_heads or not heads or heads % kv_heads:
        fail(f"{heads} query heads cannot be divided evenly among {kv_heads} KV heads", operator)
    check_pages("key_cache", key_cache, x, operator)
    check_pages("value_cache", value_cache, x, operator)


def check_pages(name: str, cache: torch.Tensor, x: int, operator: str = DECODE) -> None:
    """Raise ValueError unless every page of a cache tensor is contiguous and starts at a multiple of 16 bytes.

    A page is the slice ``cache[block, kv_head]``, which holds the keys or values of one KV head in one block.

    name: the tensor's name in the error message. x: the number of elements in 16 bytes.
    """
    if not cache[0, 0].is_contiguous():
        fail(f"the page of a head must be contiguous in {name}, got strides {cache.stride()}", operator)
    strides = [stride for size, stride in zip(cache.shape[:2], cache.stride()) if size > 1]
    if any(stride % x for stride in strides):
        fail(f"pages of {name} must start at multiples of 16 bytes, got strides {cache.stride()}", operator)
    if past := cache.data_ptr() % 16:
        fail(f"{name} must start at a multiple of 16 bytes; its address is {past} bytes past such a multiple", operator)


def check_tables(query: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor, max_seq_len: int) -> None:
    """Raise ValueError if block_tables, seq_lens or max_seq_len has a wrong value, shape, dtype or stride.

    block_tables: [seqs, max blocks] int32 with contiguous rows, where max blocks is any number.
    seq_lens: [seqs] int32, contiguous.
    max_seq_len: an upper bound for the sequence lengths in tokens, at least 0.
    """
    seqs = query.shape[0]
    if block_tables.dim() != 2 or block_tables.shape[0] != seqs or block_tables.dtype != torch.int32:
        fail(f"block_tables must be int32 [{seqs}, max blocks], got {shape_of(block_tables)}")
    if block_tables.shape[1] > 1 and block_tables.stride(1) != 1:
        fail(f"a row of block_tables must be contiguous, got strides {block_tables.stride()}")
    if seq_lens.shape != (seqs,) or seq_lens.dtype != torch.int32 or not seq_lens.is_contiguous():
        fail(f"seq_lens must be contiguous int32 [{seqs}], got {shape_of(seq_lens)} with strides {seq_lens.stride()}")
    if max_seq_len < 0:
        fail(f"max_seq_len must not be negative, got {max_seq_len}")


def check_scratch(out: torch.Tensor, scratch: Scratch | None) -> None:
    """Raise ValueError unless the caller's scratch tensors have the right shapes and dtypes.

    The scratch tensors may have any strides. exp_sums and max_logits must be [seqs, heads, P] float32. tmp_out must be
    [seqs, heads, P, head size] in the dtype of out. P is the number of partitions that the tensor can hold. The
    function accepts any P, and P may differ from tensor to tensor.
    """
    if scratch is None:
        return
    seqs, heads, head_size = out.shape
    for name, tensor in (("exp_sums", scratch.exp_sums), ("max_logits", scratch.max_logits)):
        if tensor.dim() != 3 or tensor.shape[:2] != (seqs, heads) or tensor.dtype != torch.float32:
            fail(f"{name} must be float32 [{seqs}, {heads}, partitions], got {shape_of(tensor)}")
    tmp_out = scratch.tmp_out
    fits = tmp_out.dim() == 4 and (*tmp_out.shape[:2], tmp_out.shape[3]) == (seqs, heads, head_size)
    if not fits or tmp_out.dtype != out.dtype:
        wanted = f"{dtype_name(out.dtype)} [{seqs}, {heads}, partitions, {head_size}]"
        fail(f"tmp_out must be {wanted}, got {shape_of(tmp_out)}")


def check_scale(name: str, scale: torch.Tensor, kv_heads: int = 1, operator: str = DECODE) -> None:
    """Raise ValueError unless ``scale`` is float32, and either has one element or is contiguous with shape [kv_heads].

    name: the argument's name in the error message.
    """
    fits = scale.numel() == 1 or (scale.shape == (kv_heads,) and scale.is_contiguous())
    if not fits or scale.dtype != torch.float32:
        one, each = "one float32 element", f"contiguous float32 [{kv_heads}]"
        works = f"a float, {one} or {each}" if kv_heads > 1 else f"a float or {one}"
        fail(f"{name} must be {works}, got {shape_of(scale)}", operator)


def check_alibi(query: torch.Tensor, slopes: torch.Tensor | None, operator: str = DECODE) -> None:
    """Raise ValueError unless alibi_slopes is None, or contiguous float32 with shape [heads]."""
    if slopes is None:
        return
    if slopes.shape != (query.shape[1],) or slopes.dtype != torch.float32 or not slopes.is_contiguous():
        fail(f"alibi_slopes must be contiguous float32 [{query.shape[1]}], got {shape_of(slopes)}", operator)


def check_sparse(sparse: BlockSparse | None, page: int) -> None:
    """Raise ValueError if a parameter of vLLM's block-sparse pattern is out of range.

    A sparse block must consist of whole cache pages, as in vLLM. page: the number of tokens in a cache page.
    """
    if sparse is None:
        return
    if sparse.block_size <= 0 or sparse.block_size % page:
        fail(f"blocksparse_block_size must be a positive multiple of block_size {page}, got {sparse.block_size}")
    for name, value in sparse._asdict().items():
        if not -(1 << 31) <= value < 1 << 31:
            fail(f"{name} of the sparse pattern must be an int32, got {value}")
    if sparse.tp_rank < 0:
        fail(f"tp_rank must not be negative, got {sparse.tp_rank}")


def check_features(call: Call) -> None:
    """Raise ValueError if the softcap, sliding_window, sinks or lse of a call is wrong.

    sinks must be None, or contiguous float32 with shape [heads]. lse must be None, or contiguous float32 with shape
    [seqs, heads].
    """
    check_limits(call.softcap, call.sliding_window)
    seqs, heads = call.query.shape[:2]
    check_numbers("sinks", call.sinks, (heads,))
    check_numbers("lse", call.lse, (seqs, heads))


def check_limits(softcap: float | None, sliding_window: int | None, operator: str = DECODE) -> None:
    """Raise ValueError unless softcap is None or positive, and sliding_window is None or at least 1 token."""
    if softcap is not None and not softcap > 0:
        fail(f"softcap must be a positive number or None, got {softcap}", operator)
    if sliding_window is not None and sliding_window < 1:
        fail(
            f"sliding_window must be 1 or more tokens, the current one included, or None; got {sliding_window} "
            "(FlashAttention's window_left is one less)",
            operator,
        )


def is_float32(number: float) -> bool:
    """Return whether ``number`` is finite in float32, the type in which kernels compute."""
    return -LARGEST_FLOAT32 <= number <= LARGEST_FLOAT32


def check_factor(scale: float, operator: str = DECODE) -> None:
    """Raise ValueError unless ``scale``, the factor of the attention scores, is finite in float32."""
    if not is_float32(scale):
        fail(f"scale must be finite in float32, got {scale}", operator)


def check_numbers(name: str, tensor: torch.Tensor | None, shape: tuple[int, ...], operator: str = DECODE) -> None:
    """Raise ValueError unless ``tensor`` is None, or contiguous float32 with shape ``shape``.

    name: the argument's name in the error message.
    """
    if tensor is None:
        return
    if tensor.dtype != torch.float32:
        fail(f"{name} must be float32, got {shape_of(tensor)}; convert it once, with {name}.float()", operator)
    if tensor.shape != shape or not tensor.is_contiguous():
        found = f"{shape_of(tensor)} with strides {tensor.stride()}"
        fail(f"{name} must be contiguous float32 {list(shape)}, got {found}", operator)


def check_tensors(call: Call | ExtendCall, modification: Modification | None, operator: str = DECODE) -> None:
    """Raise ValueError unless each parameter tensor of a call's modification has the right shape and dtype.

    Each tensor must be contiguous float32. The shape of each tensor must be [heads] or [kv_heads], as the definition of
    the modification says.

    modification: the expression that changes the scores or hides keys, with the names and shapes of its parameter
    tensors.
    """
    lengths = {"heads": call.query.shape[1], "kv_heads": call.key_cache.shape[1]}
    for (name, axis), tensor in zip(modification.tensors if modification else (), call.tensors):
        check_numbers(name, tensor, (lengths[axis],), operator)


def check_devices(call: Call) -> None:
    """Raise ValueError unless all tensors of a call are on the query's device."""
    check_device(call.query.device, call._asdict())
    check_device(call.query.device, call.scratch._asdict() if call.scratch else {})


def check_device(device: torch.device, arguments: Mapping[str, Any], operator: str = DECODE) -> None:
    """Raise ValueError unless all tensors in ``arguments`` are on ``device``, the query's device.

    arguments: a mapping from argument names, which the error message quotes, to argument values.
    """
    for name, value in arguments.items():
        for tensor in value if isinstance(value, tuple) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.device != device:
                fail(f"{name} is on {tensor.device}, query on {device}", operator)


def usable_scratch(scratch: Scratch | None, partitions: int) -> Scratch | None:
    """Return the caller's scratch, or None if one of the scratch tensors holds fewer than ``partitions`` partitions."""
    if scratch is None:
        return None
    exp_sums, max_logits, tmp_out = scratch
    return scratch if min(exp_sums.shape[2], max_logits.shape[2], tmp_out.shape[2]) >= partitions else None
