"""Yields remarks for the user about values that a config.json leaves out, and about an unknown model type."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pav2gen.reading.model.defaults import READ_WITHOUT_DEFAULTS
from pav2gen.reading.model.fields import Fields
from pav2gen.wording import quoted, spelled

#: The keys for which a remark says that a default was taken.
_TOLD = (
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "sliding_window",
    "attn_logit_softcapping",
)
#: Matches an unknown key that may describe a feature of the attention.
_LIKE_A_FEATURE = re.compile(r"soft_?cap|window|local|chunk|sink|alibi|sparse", re.I)

MOST_KEYS = 6


def assumption_notes(fields: Fields) -> Iterator[str]:
    """Yield remarks about the defaults that replaced missing values, and about an unknown model type.

    Call this function after all values have been read, because the remarks depend on which keys were looked up.
    """
    taken = [f"{key} {spelled(fields.defaulted[key])}" for key in _TOLD if key in fields.defaulted]
    if taken:
        kind = quoted(fields.model_type)
        yield f"the config leaves out some values, so the defaults of model type {kind} are taken: {', '.join(taken)}"
    if not fields.defaults and fields.model_type not in READ_WITHOUT_DEFAULTS:
        kind = f"model type {quoted(fields.model_type)} is not known" if fields.model_type else "there is no model_type"
        unread = tuple(_unread(fields))
        also = f" (not {', '.join(unread)})" if unread else ""
        yield f"{kind}: only keys with common names were read{also}; compare the spec with the model's code"


def _unread(fields: Fields) -> Iterator[str]:
    """Yield at most ``MOST_KEYS`` keys of the config.json that were not looked up, but may describe the attention."""
    found = (
        key
        for key, value in fields.own.items()
        if _LIKE_A_FEATURE.search(key)
        and key.isidentifier()
        and len(key) < 64
        and key not in fields.looked_up
        and value
    )
    yield from sorted(found)[:MOST_KEYS]
