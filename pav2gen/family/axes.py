"""The table of all axes. An axis is a property in which kernels differ, such as the head size.

The table says which values each axis may have, and how spec files, messages and kernel names write these values. All
code that handles axes uses this table. To add an axis, add an entry to ``_TABLE``, and a field to
``runtime.choice.key.Key`` and to ``family.variant.AttentionVariant``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pav2gen.errors import UserError
from pav2gen.runtime.choice.key import BUILDABLE, KV_ALIASES, MOST_TOKENS, Key

DTYPE_TAGS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
KV_TAGS = {"auto": "", "fp8_e4m3": "_e4m3", "fp8_e5m2": "_e5m2", "int8": "_int8"}

PARTITION_SIZES = (64, 128, 256, 512, 1024, 2048)

#: The names of the two sections of a spec that give the values of axes.
AXES_SECTION, FEATURES_SECTION = "axes", "features"

#: Maps the Python type of an axis's values to what messages call a value of this type.
TYPE_NAMES: Mapping[type, str] = {
    int: "a whole number from 0 to 999999999",
    float: "a number",
    bool: "true or false",
    str: "a name",
}


@dataclass(frozen=True)
class Axis:
    """One axis: a property in which the kernels of a spec file differ, such as the head size.

    kind: the Python type of the values.
    about: one sentence that describes the axis, for the JSON Schema and for ``pav2gen explain``.
    tag: a function from a value to the part of a kernel's name for this value, such as ``hd256``.
    title: a function from a value to the words for this value in the description of a kernel, such as ``head size
    256``, or to "" if the description does not mention the value.
    works: the allowed values in words, for messages.
    allowed: all values for which pav2gen can generate a kernel; if ``allowed`` is empty, ``kind`` and the rules in
    ``reading.rules`` decide which values are allowed.
    default: the values in a spec file that does not mention the axis, or None if every spec file must mention the axis.
    section: the section of a spec file that contains the axis, such as ``features``.
    nullable: whether a value can be None, which means that the kernel does not have the feature.
    aliases: maps other spellings of a value to the value.
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
        """The dotted path of this axis in a spec file, such as ``axes.head_size`` or ``features.alibi``."""
        return f"{self.section}.{self.name}"

    def has_type(self, value: object) -> bool:
        """Return whether ``value`` has the type of this axis's values.

        This method does not check whether ``value`` is an allowed value.
        """
        if value is None:
            return self.nullable
        return type(value) is self.kind or (self.kind is float and type(value) is int)

    def parse(self, text: str) -> object:
        """Convert ``text`` from the command line to a value of this axis.

        Raises UserError if ``text`` does not have the type of this axis's values.
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
    """Return a number in the form that kernel names use: ``50`` for 50.0, ``0p5`` for 0.5."""
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

#: Maps the name of every axis to the axis. The order of the axes is their order in a kernel's name.
AXES: Mapping[str, Axis] = {axis.name: axis for axis in _TABLE}

#: The names of the axes that ``bench`` reports in a phrase of its own, such as "24/4 heads of 256". It leaves these
#: axes out of the descriptions that ``title`` returns.
HEADS = ("head_size", "gqa_ratio")

#: The names of the axes for which a call and its kernel must have the same values: the fields of ``Key``.
KEY_AXES = tuple(name for name in AXES if name != "partition_size")

if Key._fields != KEY_AXES:
    raise TypeError(f"family.axes lists {KEY_AXES}, and runtime.choice.key.Key has {Key._fields}")


def slug(values: Mapping[str, object]) -> str:
    """Return a kernel's name within its spec file, such as ``hd256_g6_b16_f16_p512``.

    values: maps the name of each axis to the kernel's value, in the order of ``AXES``.
    """
    return "".join(AXES[name].tag(value) for name, value in values.items())


def title(values: Mapping[str, object], leave_out: Collection[str] = ()) -> str:
    """Return a description of a kernel, such as ``head size 256, pages of 16, float16``.

    values: maps the name of each axis to the kernel's value, in the order of the description.
    leave_out: the names of the axes that the description does not mention.
    """
    parts = (AXES[name].title(value) for name, value in values.items() if name not in leave_out)
    return ", ".join(part for part in parts if part)
