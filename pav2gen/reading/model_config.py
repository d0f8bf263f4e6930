"""Reads the properties of a model's attention from its config.json, in the format of Hugging Face.

The results agree with those of vLLM's methods ``ModelConfig.get_total_num_kv_heads`` and ``_get_and_verify_max_len``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pav2gen.errors import UserError
from pav2gen.reading.model import scores
from pav2gen.reading.model.assumptions import assumption_notes
from pav2gen.reading.model.fields import Fields
from pav2gen.reading.model.heads import head_notes, head_size, num_heads, num_kv_heads, value_size
from pav2gen.reading.model.layers import layer_notes, uncovered_layers, window_sentences, windows
from pav2gen.reading.model.length import length_notes, max_seq_len
from pav2gen.reading.yaml_file import printable, read_file

MAX_BYTES = 4 << 20
ENCODERS = ("bert", "roberta", "xlm-roberta", "electra", "deberta", "albert")


@dataclass(frozen=True)
class Attention:
    """The properties of a model's attention that decide which kernels the model needs.

    title: the name of the model.
    head_size: the size of a head of Q and K, in elements.
    max_seq_len: the longest context, in tokens.
    dtype: the dtype that the config.json states, or "" if the config.json states no dtype.
    softcap: the softcap on the scores, or None without a softcap.
    windows: the distinct sliding window sizes of the layers, in tokens; None in this tuple means attention to all
    tokens.
    scale: the factor by which the scores are multiplied; None means ``head_size ** -0.5``, or latent attention (MLA).
    features: a sentence for each attention feature that kernels support.
    uncovered: a sentence for each attention feature that no kernel supports.
    notes: further sentences for the user.
    """

    title: str
    model_type: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_seq_len: int
    dtype: str
    alibi: bool
    blocksparse: bool
    softcap: float | None
    windows: tuple[int | None, ...]
    sinks: bool
    scale: float | None
    features: tuple[str, ...]
    uncovered: tuple[str, ...]
    notes: tuple[str, ...]


def read_attention(path: str | os.PathLike[str]) -> Attention:
    """Read the properties of a model's attention from the config.json at ``path``.

    Raises UserError, with the path, if the file is not a model's config.json or has an invalid value. Raises UserError
    too if the layers have different numbers of KV heads, unless vLLM repeats KV heads to make the numbers equal.
    """
    fields = Fields(_read_json(path), printable(os.fspath(path)))
    heads = num_heads(fields)
    kv_heads = num_kv_heads(fields, heads)
    length, size = max_seq_len(fields), head_size(fields, heads)
    attention = Attention(
        title=_title(fields, Path(path)),
        model_type=_words(fields.model_type) or "unknown",
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=size,
        max_seq_len=length,
        dtype=_words(fields.text("torch_dtype", "dtype")).removeprefix("torch."),
        alibi=scores.uses_alibi(fields),
        blocksparse=fields.count_or_none("blocksparse_block_size") is not None,
        softcap=scores.softcap(fields),
        windows=windows(fields, length),
        sinks=scores.sinks(fields),
        scale=scores.scale(fields, size),
        features=tuple(_features(fields, length)),
        uncovered=tuple(_uncovered(fields, length, size)),
        notes=tuple(
            (*layer_notes(fields), *head_notes(fields, heads), *_scale_note(fields, size), *length_notes(fields))
        ),
    )
    return replace(attention, notes=(*attention.notes, *assumption_notes(fields)))


def _read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the JSON object in the file at ``path``.

    Raises UserError if the file cannot be read or does not contain a JSON object.
    """
    file = printable(os.fspath(path))
    try:
        config = json.loads(read_file(path, MAX_BYTES).decode())
    except json.JSONDecodeError as error:
        raise UserError(f"is not JSON: {error.msg}", f"{file}:{error.lineno}") from None
    except UnicodeDecodeError:
        raise UserError("is not JSON: not UTF-8", file) from None
    except (ValueError, RecursionError):
        raise UserError("is not a model's config.json: a number or a nesting in it is too long", file) from None
    if not isinstance(config, dict):
        raise UserError("is not a model's config.json: it must hold an object", file)
    return config


def _uncovered(fields: Fields, length: int, size: int) -> Iterator[str]:
    """Yield a sentence for each feature of the model's attention that no kernel supports.

    length: the longest context in tokens.
    size: the size of a head of Q and K, in elements.
    """
    yield from uncovered_layers(fields, length)
    if fields.flag("is_encoder_decoder") or fields.listed("cross_attention_layers"):
        yield "cross attention to an encoder's output: kernels serve only the decoder's self-attention"
    if fields.model_type in ENCODERS and not fields.flag("is_decoder"):
        yield "attention of an encoder, to tokens on both sides: kernels serve only decoding"
    if value_size(fields, size) != size:
        yield f"heads of V of size {value_size(fields, size)}, unlike those of Q and K"


def _features(fields: Fields, length: int) -> Iterator[str]:
    """Yield a sentence for each feature of the model's attention that kernels support.

    length: the longest context in tokens.
    """
    yield from window_sentences(fields, length)
    if cap := scores.softcap(fields):
        yield f"a softcap of {cap:g} on the logits"
    if scores.sinks(fields):
        yield "attention sinks, a learned logit for each head"


def _scale_note(fields: Fields, size: int) -> Iterator[str]:
    """Yield a sentence about the scale of the attention scores, unless the scale is ``size ** -0.5``.

    size: the head size in elements.
    """
    if (scale := scores.scale(fields, size)) is not None:
        yield f"the model scales its scores by {scale:.6g}, not by head_size ** -0.5: vLLM passes that to the kernel"


def _title(fields: Fields, path: Path) -> str:
    """Return the model's name from the config.json, or else from the folder that contains the config.json.

    path: the path of the config.json.
    """
    origin = str(fields.get("_name_or_path") or "")
    return _words(Path(origin).name) or _words(path.absolute().parent.name) or "model"


def _words(value: object) -> str:
    """Return the text ``value`` with spaces in place of characters other than letters, digits and ``._+-``.

    The result has at most 64 characters. The result is empty if ``value`` is not a text.
    """
    return re.sub(r"[^A-Za-z0-9._+-]+", " ", value).strip(" ._+-")[:64] if isinstance(value, str) else ""
