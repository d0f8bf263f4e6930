"""Reads which layers of a model have a paged KV cache, and to how many past tokens each layer attends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pav2gen.reading.model.fields import Fields, described, is_count, is_off
from pav2gen.reading.model.heads import windowed_heads

#: The kinds of layers. In this order, they have attention to all past tokens, attention to a sliding window, attention
#: within a chunk of tokens, linear attention, and no attention.
FULL, WINDOW, CHUNK, LINEAR, OTHER = "full", "window", "chunk", "linear", "other"

#: Start of the name that a config.json gives to a layer -> the kind of the layer.
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

#: ``layer_kinds`` returns the kinds of at most this many layers.
MOST_LAYERS = 4096

#: Types of models in which all layers have a sliding window, if the config.json gives a window.
ALL_WINDOWED = frozenset({"mistral", "mixtral", "ministral", "phi3", "phimoe", "starcoder2"})

WINDOWS = ("sliding_window", "attention_window_size", "sliding_window_size")


def layer_kinds(fields: Fields) -> tuple[str, ...]:
    """Return the kind of each layer, from first to last: ``FULL``, ``WINDOW``, ``CHUNK``, ``LINEAR`` or ``OTHER``.

    The result is empty if neither the config.json nor the model type determines the kinds.
    """
    number = fields.count_or_none("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    layers = number if number is not None and number <= MOST_LAYERS else 0
    for found in (_listed(fields, layers), _hybrid(fields, layers), _patterned(fields, layers)):
        if found:
            return found[:MOST_LAYERS]
    return ()


def windows(fields: Fields, max_seq_len: int) -> tuple[int | None, ...]:
    """Return the distinct window sizes, in tokens, of the layers with a paged KV cache.

    The value None means attention to all tokens. None comes first, then the sizes in ascending order. A window of
    ``max_seq_len`` tokens or more counts as None. The result is ``(None,)`` if layers with a window have other heads
    than the remaining layers. In this case, a spec file describes only the layers without a window.
    """
    if windowed_heads(fields):
        return (None,)
    sizes = {size if size is not None and size < max_seq_len else None for size in _sizes(fields)}
    return tuple(sorted(sizes, key=lambda size: size or 0))


def _sizes(fields: Fields) -> set[int | None]:
    if listed := _listed_windows(fields):
        return set(listed)
    window, kinds = _window(fields), layer_kinds(fields)
    if window is None:
        return {None}
    if not kinds:
        return {window} if fields.model_type in ALL_WINDOWED else {None, window}
    has = {kind for kind in kinds if kind in (FULL, WINDOW, CHUNK)}
    return {window if kind == WINDOW else None for kind in has} or {None}


def _window(fields: Fields) -> int | None:
    """Return the window size, in tokens, if the config.json states one size for all layers with a window.

    The result is None if the config.json states no size, states several sizes, or turns the window off.
    """
    if fields.flag("use_sliding_window") is False or isinstance(fields.get(*WINDOWS), list):
        return None
    return fields.count_or_none(*WINDOWS)


def _listed_windows(fields: Fields) -> tuple[int | None, ...]:
    """Return the window size of each layer, in tokens, or None for a layer that attends to all tokens.

    The result is empty if the config.json does not list the windows by layer.
    """
    if not isinstance(fields.get("sliding_window"), list):
        return ()
    listed = fields.listed("sliding_window")
    for size in listed:
        if size is not None and not is_off(size) and not is_count(size):
            raise fields.fail(f"sliding_window must hold positive whole numbers or null, not {described(size)}")
    return tuple(None if size is None or is_off(size) else size for size in listed)


def window_sentences(fields: Fields, max_seq_len: int) -> Iterator[str]:
    """Yield a sentence about the model's sliding windows, or nothing if the model has no sliding window.

    max_seq_len: the longest context in tokens; windows of this size or more do not count.
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
    """Yield a sentence for each kind of layer whose attention no kernel supports, such as attention within chunks.

    max_seq_len: the longest context in tokens.
    """
    kinds = layer_kinds(fields)
    yield from _windowed_layers(fields, kinds)
    chunk = fields.count_or_none("attention_chunk_size")
    if chunk is not None and chunk < max_seq_len and (CHUNK in kinds or not kinds):
        where = f"{kinds.count(CHUNK)} of {len(kinds)} layers" if kinds else "some or all layers"
        yield f"attention within chunks of {chunk} tokens, in {where}: right only up to that context"
    has_local = "local" in str(fields.get("attention_types", "attention_layers"))
    if has_local and (local := fields.count_or_none("window_size")) is not None:
        yield f"local attention of {local} tokens, in some layers: right only up to that context"  # GPT-Neo


def _windowed_layers(fields: Fields, kinds: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence about the layers with a window, if their heads differ from those of the other layers."""
    heads = windowed_heads(fields)
    listed = [size for size in _listed_windows(fields) if size is not None]
    sizes = sorted({*listed, *([] if (window := _window(fields)) is None else [window])})
    number = len(listed) or kinds.count(WINDOW)
    if heads and (sizes or number) and (number or not kinds):
        where = f"{number} of {len(_listed_windows(fields) or kinds)} layers" if number else "some layers"
        window_words = f"a sliding window of {' and '.join(map(str, sizes))} tokens" if sizes else "a sliding window"
        yield f"{window_words}, in {where}: they have other heads ({heads})"


def layer_notes(fields: Fields) -> Iterator[str]:
    """Yield sentences for the user about layers without a paged KV cache, such as linear attention or Mamba."""
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
    """Return the kind of each layer, from a list in the config.json.

    The result is empty if the config.json does not list the layers.

    layers: the number of layers, or 0 if the number is unknown.
    """
    for key in ("layer_types", "layers_block_type"):
        if listed := fields.listed(key):
            return tuple(map(_kind, listed))
    if listed := fields.listed("attn_type_list"):  # MiniMax
        return tuple(FULL if item == 1 else LINEAR for item in listed)
    if listed := fields.listed("hybrid_layer_pattern"):  # MiMo-V2
        return tuple(WINDOW if item == 1 else FULL for item in listed)
    if pattern := fields.text("hybrid_override_pattern"):  # Nemotron-H: M is Mamba, * attention, - only an MLP
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
    """Return the kind of each layer, in a model in which only some layers have softmax attention.

    The result is empty if the config.json does not state which layers have softmax attention.
    """
    period = fields.count_or_none("attn_layer_period")
    if period is not None and fields.get("attn_layer_offset") is not None:  # Jamba
        offset = fields.count_or_none("attn_layer_offset") or 0
        return tuple(FULL if index % period == offset else OTHER for index in range(layers))
    for key, rest in (("attn_layer_indices", OTHER), ("full_attn_idxs", OTHER), ("hybrid_layer_ids", OTHER)):
        if listed := fields.listed(key):  # Bamba, LFM2, Zamba2
            return tuple(FULL if index in listed else rest for index in range(layers))
    linear = fields.part("linear_attn_config")  # Kimi Linear: layers are counted from 1
    if isinstance(full := linear.get("full_attn_layers"), list):
        return tuple(FULL if index + 1 in full else LINEAR for index in range(layers))
    if (interval := fields.count_or_none("full_attention_interval")) is not None:  # Qwen3-Next
        return tuple(FULL if (index + 1) % interval == 0 else LINEAR for index in range(layers))
    return ()


def _patterned(fields: Fields, layers: int) -> tuple[str, ...]:
    """Return the kind of each layer, in a model in which only some layers have a window or chunks.

    The result is empty if the config.json does not state which layers have a window or chunks.
    """
    if fields.model_type == "llama4_text":
        with_rope: list[Any] = fields.listed("no_rope_layers")
        chunked = with_rope or [(index + 1) % 4 for index in range(layers)]
        return tuple(CHUNK if item else FULL for item in chunked)
    if fields.flag("use_sliding_window") and fields.get("max_window_layers") is not None:  # Qwen2
        first = fields.count_or_none("max_window_layers") or 0
        return tuple(WINDOW if index >= first else FULL for index in range(layers))
    pattern = fields.get("sliding_window_pattern", "_sliding_window_pattern")
    if _window(fields) is None:
        return ()
    if isinstance(pattern, str) and pattern and set(pattern) <= set("LG"):  # EXAONE: L is local, G global
        return tuple(FULL if pattern[index % len(pattern)] == "G" else WINDOW for index in range(layers))
    if (pattern := fields.count_or_none("sliding_window_pattern", "_sliding_window_pattern")) is not None:
        return tuple(FULL if (index + 1) % pattern == 0 else WINDOW for index in range(layers))
    return ()
