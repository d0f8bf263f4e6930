"""Reads the layers of a model: which layers have a paged KV cache, and to how many past tokens each layer attends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pav2gen.reading.model.fields import Fields, is_count

#: The kinds of layers: attention to everything, to a window, within a chunk; linear attention; no attention.
FULL, WINDOW, CHUNK, LINEAR, OTHER = "full", "window", "chunk", "linear", "other"

#: Prefixes of the names that configs give to each kind.
_NAMES = (
    ("sliding", WINDOW),
    ("local", WINDOW),
    ("chunked", CHUNK),
    ("linear", LINEAR),
    ("full", FULL),
    ("global", FULL),
    ("attention", FULL),
    ("hybrid", FULL),
)

#: Models with more layers than this are not listed layer by layer.
MOST_LAYERS = 4096

#: Model types in which every layer has the window.
ALL_WINDOWED = frozenset({"mistral", "mixtral", "ministral", "phi3", "phimoe", "starcoder2"})

WINDOWS = ("sliding_window", "attention_window_size", "sliding_window_size")


def layer_kinds(fields: Fields) -> tuple[str, ...]:
    """The kind of each layer (``FULL``, ``WINDOW``, ...). Empty if neither the config nor the model type determines the
    kinds.
    """
    number = fields.get("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    layers = number if is_count(number, MOST_LAYERS) else 0
    for found in (_listed(fields, layers), _hybrid(fields, layers), _patterned(fields, layers)):
        if found:
            return found[:MOST_LAYERS]
    return ()


def windows(fields: Fields, max_seq_len: int) -> tuple[int | None, ...]:
    """The distinct window sizes, in tokens, of the layers with a paged KV cache. None means attention to all tokens.

    A window of ``max_seq_len`` tokens or more also counts as None. None comes first, then the windows in ascending
    order.
    """
    sizes = {size if size is not None and size < max_seq_len else None for size in _sizes(fields)}
    return tuple(sorted(sizes, key=lambda size: size or 0))


def _sizes(fields: Fields) -> set[int | None]:
    listed = fields.listed("sliding_window")
    if listed:
        return {size if is_count(size) else None for size in listed}
    window, kinds = _window(fields), layer_kinds(fields)
    if window is None:
        return {None}
    if not kinds:
        return {window} if fields.model_type in ALL_WINDOWED else {None, window}
    has = {kind for kind in kinds if kind in (FULL, WINDOW, CHUNK)}
    return {window if kind == WINDOW else None for kind in has} or {None}


def _window(fields: Fields) -> int | None:
    """The window size of the layers with a sliding window, in tokens. None if the model has no sliding window."""
    window = fields.get(*WINDOWS)
    if fields.get("use_sliding_window") is False:
        return None
    return int(window) if is_count(window) else None


def window_sentences(fields: Fields, max_seq_len: int) -> Iterator[str]:
    """A sentence that states the model's sliding windows and their layers. Nothing if the model has no sliding
    window.
    """
    kinds = layer_kinds(fields)
    sizes = [size for size in windows(fields, max_seq_len) if size is not None]
    if sizes:
        number = kinds.count(WINDOW)
        where = f"{number} of {len(kinds)} layers" if number else "some or all layers"
        where = "all layers" if sizes and None not in windows(fields, max_seq_len) else where
        sentence = " and ".join(map(str, sizes))
        yield f"a sliding window of {sentence} tokens, in {where}"


def uncovered_layers(fields: Fields, max_seq_len: int) -> Iterator[str]:
    """A sentence for each kind of limited attention that no kernel supports, such as chunked attention."""
    kinds = layer_kinds(fields)
    chunk = fields.get("attention_chunk_size")
    if is_count(chunk) and chunk < max_seq_len and (CHUNK in kinds or not kinds):
        where = f"{kinds.count(CHUNK)} of {len(kinds)} layers" if kinds else "some or all layers"
        yield f"attention within chunks of {chunk} tokens, in {where}: right only up to that context"
    local = fields.get("window_size")
    if is_count(local) and "local" in str(fields.get("attention_types", "attention_layers")):
        yield f"local attention of {local} tokens, in some layers: right only up to that context"  # GPT-Neo


def layer_notes(fields: Fields) -> Iterator[str]:
    """Sentences about the layers without a paged KV cache, which ``init`` writes as comments into the drafted spec."""
    kinds = layer_kinds(fields)
    linear, other = kinds.count(LINEAR), kinds.count(OTHER)
    if linear:
        yield (
            f"{linear} of {len(kinds)} layers are linear attention, without a paged cache: the kernels serve the others"
        )
    if other:
        yield f"{other} of {len(kinds)} layers have no attention (Mamba or convolution): the kernels serve the others"
    if fields.model_type == "falcon_h1":
        yield "each layer has attention and Mamba side by side: the kernels serve the attention"


def _listed(fields: Fields, layers: int) -> tuple[str, ...]:
    """The kind of each layer, or an empty tuple if the config does not list a kind for each layer."""
    for key in ("layer_types", "layers_block_type"):
        if listed := fields.listed(key):
            return tuple(map(_kind, listed))
    if listed := fields.listed("attn_type_list"):  # MiniMax
        return tuple(FULL if item == 1 else LINEAR for item in listed)
    if listed := fields.listed("hybrid_layer_pattern"):  # MiMo-V2
        return tuple(WINDOW if item == 1 else FULL for item in listed)
    pattern = fields.get("hybrid_override_pattern")  # Nemotron-H: M is Mamba, * attention, - only an MLP
    if isinstance(pattern, str) and pattern:
        return tuple(FULL if letter == "*" else OTHER for letter in pattern)
    if listed := fields.listed("block_types"):  # RecurrentGemma: repeated over the layers
        kinds = tuple(map(_kind, listed))
        windowed = tuple(WINDOW if kind == FULL and fields.get("attention_window_size") else kind for kind in kinds)
        return tuple(windowed[index % len(windowed)] for index in range(layers or len(windowed)))
    return ()


def _kind(name: object) -> str:
    text = str(name)
    return next((kind for begin, kind in _NAMES if text.startswith(begin)), OTHER)


def _hybrid(fields: Fields, layers: int) -> tuple[str, ...]:
    """The kind of each layer, or an empty tuple if the config does not state which layers have attention."""
    period, offset = fields.get("attn_layer_period"), fields.get("attn_layer_offset")
    if is_count(period) and isinstance(offset, int):  # Jamba
        return tuple(FULL if index % period == offset else OTHER for index in range(layers))
    for key, rest in (("attn_layer_indices", OTHER), ("full_attn_idxs", OTHER), ("hybrid_layer_ids", OTHER)):
        if listed := fields.listed(key):  # Bamba, LFM2, Zamba2
            return tuple(FULL if index in listed else rest for index in range(layers))
    linear = fields.part("linear_attn_config")  # Kimi Linear: layers are counted from 1
    if isinstance(full := linear.get("full_attn_layers"), list):
        return tuple(FULL if index + 1 in full else LINEAR for index in range(layers))
    interval = fields.get("full_attention_interval")  # Qwen3-Next
    if is_count(interval):
        return tuple(FULL if (index + 1) % interval == 0 else LINEAR for index in range(layers))
    return ()


def _patterned(fields: Fields, layers: int) -> tuple[str, ...]:
    """The kind of each layer, or an empty tuple if the config states no pattern of layers with a window or with
    chunks.
    """
    if fields.model_type == "llama4_text":
        with_rope: list[Any] = fields.listed("no_rope_layers")
        chunked = with_rope or [(index + 1) % 4 for index in range(layers)]
        return tuple(CHUNK if item else FULL for item in chunked)
    first = fields.get("max_window_layers")
    if isinstance(first, int) and not isinstance(first, bool) and fields.get("use_sliding_window") is True:  # Qwen2
        return tuple(WINDOW if index >= first else FULL for index in range(layers))
    pattern = fields.get("sliding_window_pattern", "_sliding_window_pattern")
    if _window(fields) is None:
        return ()
    if isinstance(pattern, str) and pattern and set(pattern) <= set("LG"):  # EXAONE: L is local, G global
        return tuple(FULL if pattern[index % len(pattern)] == "G" else WINDOW for index in range(layers))
    if is_count(pattern):
        return tuple(FULL if (index + 1) % pattern == 0 else WINDOW for index in range(layers))
    return ()
