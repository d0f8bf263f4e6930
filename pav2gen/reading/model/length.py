"""Computes the longest context of a model, in tokens, as vLLM's function ``_get_and_verify_max_len`` does."""

from __future__ import annotations

from collections.abc import Iterator

from pav2gen.family.spec import LARGEST_INT32
from pav2gen.reading.model.fields import Fields

#: Keys of a config.json that may give the longest context, in tokens. If several do, vLLM takes the smallest value.
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
#: The longest context, in tokens, that vLLM assumes if the config.json gives none.
DEFAULT_LENGTH = 2048

#: Types of rotary embedding whose scaling is already included in the context length of the config.json.
SCALED_ALREADY = ("su", "longrope", "llama3")

#: Longer contexts, stated or computed, are cut to this number of tokens.
BEYOND = 10**18


def max_seq_len(fields: Fields) -> int:
    """Return the longest context in tokens, from 1 to the largest int32.

    Raises UserError if the config.json states an invalid length, or an invalid scaling of the rotary embedding.
    """
    return max(1, min(_unlimited(fields), LARGEST_INT32))


def length_notes(fields: Fields) -> Iterator[str]:
    """Yield sentences for the user if the longest context was assumed or limited."""
    if all(fields.get(key) is None for key in LENGTHS):
        yield (
            f"the config gives no context length: max_seq_len {DEFAULT_LENGTH} is assumed, as in vLLM; correct it if "
            "the model has another"
        )
    if _unlimited(fields) > LARGEST_INT32:
        yield f"the model's context length is over the largest int32: max_seq_len is limited to {LARGEST_INT32}"


def _unlimited(fields: Fields) -> int:
    """Return the longest context in tokens, which may exceed the largest int32 but not ``BEYOND``."""
    length = float(min((_count(fields, key) for key in LENGTHS if fields.get(key) is not None), default=DEFAULT_LENGTH))
    if fields.get("model_max_length") is not None:  # Command R: it overrides max_position_embeddings
        length = float(_count(fields, "model_max_length"))
    if "gemma3" not in fields.model_type:  # its length already includes the scaling
        for rope in _ropes(fields):
            length = _scaled(length, rope)
    return int(min(length, BEYOND))


def _count(fields: Fields, key: str) -> int:
    return min(fields.count(key), BEYOND)


def _ropes(fields: Fields) -> Iterator[Fields]:
    """Yield the parameter sets of the rotary embedding.

    A model has several sets if its layers use different parameters of the rotary embedding.
    """
    parameters = fields.part("rope_scaling") or fields.part("rope_parameters")
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    yield from (Fields(rope, fields.file) for rope in nested or [parameters])


def _scaled(length: float, rope: Fields) -> float:
    """Return the context length in tokens to which the rotary embedding ``rope`` scales ``length``."""
    kind = rope.text("rope_type", "type")
    if kind in SCALED_ALREADY:
        return length
    original = rope.number_or_none("original_max_position_embeddings")
    return (original if kind == "yarn" and original else length) * (rope.number_or_none("factor") or 1.0)
