"""The table of all axes: which values each axis may have, and how specs, messages and kernel names write these values.

All code that handles axes uses this table: the readers of specs and tuning files, the rules, ``explain``, ``--filter``,
kernel names, titles, the JSON document of ``bench``, ``init`` and the JSON Schema. To add an axis, add an entry to
``_TABLE``, and a field to ``runtime.key.Key`` and to ``family.variant.AttentionVariant``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pav2gen.errors import UserError
from pav2gen.runtime.key import BUILDABLE, KV_ALIASES, MOST_TOKENS, Key

DTYPE_TAGS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
KV_TAGS = {"auto": "", "fp8_e4m3": "_e4m3", "fp8_e5m2": "_e5m2", "int8": "_int8"}

PARTITION_SIZES = (64, 128, 256, 512, 1024, 2048)

#: The names of the two sections of a spec that give the values of axes.
AXES_SECTION, FEATURES_SECTION = "axes", "features"

#: Python type of an axis's values -> what messages call a value of this type.
TYPE_NAMES: Mapping[type, str] = {
    int: "a whole number from 0 to 999999999",
    float: "a number",
    bool: "true or false",
    str: "a name",
}


@dataclass(frozen=True)
class Axis:
    """One axis: a property in which the kernels of a spec differ, such as the head size.

    ``kind`` is the Python type of the axis's values. If ``nullable``, None ("without the feature") is a value too.
    ``allowed`` lists all values that a kernel can be generated for. If ``allowed`` is empty, the type and the rules in
    ``reading.rules`` decide which values are allowed. ``works`` describes the allowed values in words, for messages.
    ``default`` has the values for a spec that leaves the axis out, or None if a spec must give the axis. ``section`` is
    the section of a spec that gives the values. ``aliases`` maps other spellings of values to the values. ``about`` is
    one sentence for the JSON Schema and for ``explain``. ``tag`` is a function that takes a value and returns the part
    of a kernel's name that states the value. ``title`` is a function that takes a value and returns the part of a
    kernel's description that states the value, or "" for a value that the description leaves out.
    """

    name: str
    kind: type
    about: str
    tag: Callable[[object], str]
    title: Callable[[object], str]
    works: str = ""
    allowed: Collection[object] = ()
    default: tuple[object, ...] | None = None
    section: str = AXES_SECTION
    nullable: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where a spec file gives the values of this axis, as a dotted path: ``axes.head_size``, ``features.alibi``."""
        return f"{self.section}.{self.name}"

    def has_type(self, value: object) -> bool:
        """Whether ``value`` has the type of this axis's values. Whether the value is allowed is not checked."""
        if value is None:
            return self.nullable
        return type(value) is self.kind or (self.kind is float and type(value) is int)

    def parse(self, text: str) -> object:
        """Convert ``text``, which is from the command line, to a value of this axis. Raises UserError if ``text`` does
        not have the type of the axis's values.
        """
        text = text.strip()
        if self.nullable and text in ("null", "none", "None", "~"):
            return None
        if self.kind is str:
            return self.aliases.get(text, text)
        if self.kind is bool and text in ("true", "false"):
            return text == "true"
        if self.kind is int and re.fullmatch(r"[0-9]{1,9}", text):
            return int(text)
        if self.kind is float and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
            return float(text)
        null = ", or null" if self.nullable else ""
        raise UserError(f"{self.name}={text[:40]} is not {TYPE_NAMES[self.kind]}{null}")


def _number(prefix: str) -> Callable[[object], str]:
    return lambda value: f"{prefix}{value}"


def _name_part(value: object) -> str:
    """How a kernel's name writes the number ``value``: ``50`` for 50.0, ``0p5`` for 0.5."""
    return str(value).removesuffix(".0").replace(".", "p")


def _flag(text: str) -> Callable[[object], str]:
    return lambda value: text if value else ""


def _heads(ratio: object) -> str:
    return "one query head for each KV head" if ratio == 1 else f"{ratio} query heads for each KV head"


def _allowed(name: str) -> dict[str, object]:
    values, works = BUILDABLE[name]
    return {"allowed": values, "works": works}


_TABLE = (
    Axis(
        "head_size",
        int,
        "Elements of a head of Q, K and V.",
        tag=_number("hd"),
        title=_number("head size "),
        **_allowed("head_size"),  # type: ignore[arg-type]
    ),
    Axis(
        "gqa_ratio",
        int,
        "Query heads for each KV head.",
        tag=_number("_g"),
        title=_heads,
        **_allowed("gqa_ratio"),  # type: ignore[arg-type]
    ),
    Axis(
        "block_size",
        int,
        "Tokens in a page (vLLM: block) of the KV cache.",
        tag=_number("_b"),
        title=_number("pages of "),
        default=(16,),  # vLLM's
        **_allowed("block_size"),  # type: ignore[arg-type]
    ),
    Axis(
        "dtype",
        str,
        "Type of the query and the output.",
        tag=lambda value: f"_{DTYPE_TAGS[str(value)]}",
        title=str,
        default=("float16",),
        **_allowed("dtype"),  # type: ignore[arg-type]
    ),
    Axis(
        "kv_cache_dtype",
        str,
        "Type of the KV cache, by the names of vLLM's --kv-cache-dtype; auto is the type of the query.",
        tag=lambda value: KV_TAGS[str(value)],
        title=lambda value: "" if value == "auto" else f"{value} cache",
        default=("auto",),
        aliases=KV_ALIASES,
        **_allowed("kv_cache_dtype"),  # type: ignore[arg-type]
    ),
    Axis(
        "alibi",
        bool,
        "Whether ALiBi adds a bias by distance to the scores.",
        tag=_flag("_alibi"),
        title=_flag("ALiBi"),
        default=(False,),
        section=FEATURES_SECTION,
    ),
    Axis(
        "blocksparse",
        bool,
        "Whether calls may give vLLM's block-sparse pattern.",
        tag=_flag("_sparse"),
        title=_flag("block-sparse"),
        default=(False,),
        section=FEATURES_SECTION,
    ),
    Axis(
        "softcap",
        float,
        "The scores become softcap * tanh(s / softcap), before every bias and mask; null is none.",
        tag=lambda value: "" if value is None else f"_cap{_name_part(value)}",
        title=lambda value: "" if value is None else f"softcap {value:g}",
        works="a number from 0.001 to 1000000, or null",
        default=(None,),
        section=FEATURES_SECTION,
        nullable=True,
    ),
    Axis(
        "sliding_window",
        int,
        "Tokens that a query attends, the current one included: key k if q - k < W; null is all.",
        tag=lambda value: "" if value is None else f"_w{value}",
        title=lambda value: "" if value is None else f"window {value}",
        works=f"from 1 to {MOST_TOKENS} tokens, the current one included, or null",
        default=(None,),
        section=FEATURES_SECTION,
        nullable=True,
    ),
    Axis(
        "sinks",
        bool,
        "Whether each query head has a logit that takes part in the softmax and has no value.",
        tag=_flag("_sinks"),
        title=_flag("sinks"),
        default=(False,),
        section=FEATURES_SECTION,
    ),
    Axis(
        "modification",
        str,
        "The name of a modification (of the score or the mask) that the spec defines; null is none.",
        tag=lambda value: "" if value is None else f"_mod_{value}",
        title=lambda value: "" if value is None else str(value),
        default=(None,),
        section=FEATURES_SECTION,
        nullable=True,
    ),
    Axis(
        "partition_size",
        int,
        "Tokens in a partition, which one thread block works on.",
        tag=_number("_p"),
        title=lambda value: "",
        works="a power of two from 64 to 2048",
        allowed=PARTITION_SIZES,
        default=(512,),  # vLLM's
    ),
)

#: Every axis by its name, in the order in which a kernel's name states the axes. In lists of kernels, the last axis
#: varies fastest.
AXES: Mapping[str, Axis] = {axis.name: axis for axis in _TABLE}

#: The axes that the reports of ``bench`` state in a phrase of their own, such as "24/4 heads of 256". The reports leave
#: these axes out of the titles that they get from ``title``.
HEADS = ("head_size", "gqa_ratio")

#: The names of the axes for which a call and its kernel must have the same values: the fields of ``Key``.
KEY_AXES = tuple(name for name in AXES if name != "partition_size")

if Key._fields != KEY_AXES:
    raise TypeError(f"family.axes lists {KEY_AXES}, and runtime.key.Key has {Key._fields}")


def slug(values: Mapping[str, object]) -> str:
    """The name of a kernel within its spec, such as ``hd256_g6_b16_f16_p512``.

    values: the kernel's value for each axis, by the name of the axis, in the order of ``AXES``.
    """
    return "".join(AXES[name].tag(value) for name, value in values.items())


def title(values: Mapping[str, object], leave_out: Collection[str] = ()) -> str:
    """A description of a kernel by its axis values, such as ``head size 256, pages of 16, float16``.

    values: the kernel's value for each axis, by the name of the axis. The description states them in this order.
    leave_out: the names of axes that the description does not state.
    """
    parts = (AXES[name].title(value) for name, value in values.items() if name not in leave_out)
    return ", ".join(part for part in parts if part)
