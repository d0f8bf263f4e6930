"""Computes the longest context of a model as vLLM does (``_get_and_verify_max_len``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pav2gen.reading.model.fields import Fields

#: Keys that may give the length. vLLM takes the smallest value.
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: The length that vLLM assumes if the config gives none.
DEFAULT_LENGTH = 2048

#: Kinds of rotary embedding for which the config's length already includes the scaling.
SCALED_ALREADY = ("su", "longrope", "llama3")

LARGEST_INT32 = 2**31 - 1


def max_seq_len(fields: Fields) -> int:
    """The longest context in tokens, from 1 to the largest int32. Raises UserError if a stated length is not a
    number.
    """
    length = float(min((fields.count(key) for key in LENGTHS if fields.get(key) is not None), default=DEFAULT_LENGTH))
    if fields.get("model_max_length") is not None:  # Command R: it overrides max_position_embeddings
        length = float(fields.count("model_max_length"))
    if "gemma3" not in fields.model_type:  # its length already includes the scaling
        for rope in _ropes(fields):
            length = _scaled(length, rope)
    return max(1, min(int(length), LARGEST_INT32)) if length < 1e18 else LARGEST_INT32


def _ropes(fields: Fields) -> Iterator[Mapping[str, Any]]:
    """The parameter sets of the rotary embedding. There are several sets if kinds of layers have different
    parameters.
    """
    parameters = fields.part("rope_scaling") or fields.part("rope_parameters")
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    yield from nested or [parameters]


def _scaled(length: float, rope: Mapping[str, Any]) -> float:
    """The context length after the scaling of the rotary embedding, in tokens."""
    kind = rope.get("rope_type", rope.get("type"))
    if kind in SCALED_ALREADY:
        return length
    original = _number(rope.get("original_max_position_embeddings"))
    return (original if kind == "yarn" and original else length) * (_number(rope.get("factor")) or 1.0)


def _number(value: object) -> float | None:
    """``value`` if it is a number above 0, else None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 1e18 else None  # type: ignore[arg-type, operator]
