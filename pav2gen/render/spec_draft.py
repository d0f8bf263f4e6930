"""Writes a first spec for a model, for the command ``pav2gen init``."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator

from pav2gen.errors import UserError
from pav2gen.family.axes import DTYPE_TAGS
from pav2gen.family.spec import Model
from pav2gen.family.variant import Variant, extenders_of
from pav2gen.plan.extend_torch import ExtendTorchPlan
from pav2gen.plan.torch_plan import smallest_workspace_bytes
from pav2gen.reading.model_config import Attention, read_attention
from pav2gen.reading.spec_file import DEFAULTS, LONGEST_NAME, RESERVED_NAMES, parse
from pav2gen.reading.yaml_file import printable
from pav2gen.runtime.choice.dispatch_row import MIB
from pav2gen.runtime.choice.key import whole_groups
from pav2gen.wording import flow_list, flow_map

RANKS = (1, 2, 4, 8)
SHORT_MODEL = 8192


def draft_spec(config: str | os.PathLike[str], name: str = "", target: str = "bi-v100") -> str:
    """Return the text of a complete and valid spec for a model, with comments for the user.

    config: the path of the model's config.json.
    name: the name of the spec. If ``name`` is empty, the name is made from the model's name.
    target: the name of the GPU that the spec targets.

    Raises UserError if the config.json cannot be read, or if no kernel can compute the model's attention.
    """
    file = printable(os.fspath(config))
    attention = read_attention(config)
    text = "\n".join(_lines(attention, name or family_name(attention.title), target)) + "\n"
    try:
        parse(text.encode(), file)
    except UserError as error:
        raise UserError(f"no spec can serve this model: {error.message}", file) from None
    return text


def family_name(title: str) -> str:
    """Make the name of a spec from the name of a model: ``Qwen2.5-7B-Instruct`` becomes ``qwen2_5_7b_instruct``."""
    words = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
    name = (words if words[:1].isalpha() else f"model_{words}")[:LONGEST_NAME].strip("_")
    return f"{name[: LONGEST_NAME - 6]}_model" if name in RESERVED_NAMES else name


def _lines(attention: Attention, name: str, target: str) -> Iterator[str]:
    """Yield the lines of the spec file for a model with ``attention``, without newlines.

    name, target: the names of the spec and of its target.
    """
    ranks = tuple(size for size in RANKS if _model(attention, (1,)).shards_over(size))
    model = _model(attention, ranks)
    yield from _head(attention)
    yield "schema: 1"
    yield f"name: {name}"
    yield f"about: {attention.title}, from its config.json"
    yield f"target: {target}"
    sizes = f"num_heads: {model.num_heads}, num_kv_heads: {model.num_kv_heads}, max_seq_len: {model.max_seq_len}"
    yield f"model: {{{sizes}, tensor_parallel: {flow_list(ranks)}}}"
    yield "axes:"
    yield f"  head_size: [{attention.head_size}]"
    yield f"  gqa_ratio: {_ratios(model)}"
    yield f"  partition_size: {flow_list(_partitions(attention))}  # chosen for each call by its lengths and its batch"
    yield "  block_size: [16]  # vLLM's default"
    yield f"  dtype: {_dtypes(attention)}"
    yield f"  kv_cache_dtype: {_kv_cache_dtypes(attention)}"
    yield f"features: {flow_map(_features(attention))}"
    yield f"operators: {_operators(attention)}"
    yield "backends: [torch]"
    yield f"dispatch: {{min_seq_len: {_min_seq_len(attention)}, partition: auto}}"
    yield f"limits: {{max_variants: {DEFAULTS['limits.max_variants']}, workspace_mib: {_workspace_mib(attention)}}}"


def _extends(attention: Attention) -> bool:
    """Whether the spec lists the operator ``extend``.

    vLLM needs extend kernels for a model with a softcap. Block-sparse attention has no extend kernels.
    """
    return attention.softcap is not None and not attention.blocksparse


def _operators(attention: Attention) -> str:
    """Return the value of ``operators`` in the spec, with a comment about the operators that the user could add."""
    if _extends(attention):
        return "[decode, extend]  # a layer with softcap needs both in vLLM; add cache for compressed caches"
    return "[decode]  # add extend for chunked prefill and speculative decoding, cache for compressed caches"


def _features(attention: Attention) -> Iterator[tuple[str, object]]:
    """Yield the entries of ``features`` in the spec, as pairs (name, value).

    The value is a list if the layers of the model differ in this feature.
    """
    yield "alibi", attention.alibi
    yield "blocksparse", "[false, true]" if attention.blocksparse else False
    if attention.softcap is not None:
        yield "softcap", attention.softcap
    if attention.windows != (None,):
        yield "sliding_window", flow_list(attention.windows)
    if attention.sinks:
        yield "sinks", True


def _head(attention: Attention) -> Iterator[str]:
    """Yield the comment lines at the top of the spec file."""
    yield f"# {attention.title}: written by pav2gen init from its config.json, model type {attention.model_type}."
    for note in attention.notes:
        yield from textwrap.wrap(f"{note[0].upper()}{note[1:]}.", 120, initial_indent="# ", subsequent_indent="# ")
    if attention.features:
        yield "# Built as features, which calls name by keyword (docs/modifications.md):"
        yield from (f"#   {feature}" for feature in attention.features)
    if attention.uncovered:
        yield "# NOT COVERED by any kernel, so do not route these layers to them:"
        yield from (f"#   {feature}" for feature in attention.uncovered)


def _model(attention: Attention, ranks: tuple[int, ...]) -> Model:
    return Model(attention.num_heads, attention.num_kv_heads, attention.max_seq_len, ranks)


def _ratios(model: Model) -> str:
    """Return the value of ``gqa_ratio`` in the spec: the query heads per KV head on one tensor-parallel rank of
    ``model``.

    If the number differs between tensor-parallel sizes, a comment lists the sizes for each number.
    """
    ranks: dict[int, list[int]] = {}
    for rank in model.ranks():
        ranks.setdefault(rank.gqa_ratio, []).append(rank.tensor_parallel)
    which = "; ".join(f"{ratio} on {', '.join(map(str, sizes))} ranks" for ratio, sizes in ranks.items())
    return flow_list(sorted(ranks)) + (f"  # {which}" if len(ranks) > 1 else "")


def _dtypes(attention: Attention) -> str:
    """Return the value of ``dtype`` in the spec: float16, which vLLM uses on the BI-V100, and bfloat16 if it is the
    dtype of the model.
    """
    if attention.dtype in DTYPE_TAGS and attention.dtype not in ("float16", "float32"):
        return f"[float16, {attention.dtype}]  # the model's own is {attention.dtype}"
    return "[float16]"


def _kv_cache_dtypes(attention: Attention) -> str:
    """Return the value of ``kv_cache_dtype`` in the spec. A comment says how to add a compressed cache, if the head
    size allows one.
    """
    fp8 = "fp8_e4m3"
    comment = f"  # add {fp8} for vLLM's --kv-cache-dtype fp8" if whole_groups(attention.head_size, fp8) else ""
    return f"[auto]{comment}"


def _partitions(attention: Attention) -> tuple[int, ...]:
    """Return the partition sizes in the spec, in tokens. A model with a short context does not get the largest size."""
    return (256, 512) if attention.max_seq_len <= SHORT_MODEL else (256, 512, 1024)


def _min_seq_len(attention: Attention) -> int:
    """Return the value of ``dispatch.min_seq_len`` in the spec, in tokens: vLLM's limit of 8192, but at most half of
    the model's longest context.
    """
    return min(SHORT_MODEL, attention.max_seq_len // 2)


def _workspace_mib(attention: Attention) -> int:
    """Return the value of ``limits.workspace_mib`` in the spec, in MiB: the default, or the smallest possible workspace
    of the kernels if this is larger than the default.
    """
    ratio = max(1, attention.num_heads // attention.num_kv_heads)
    shape = (attention.head_size, ratio, 16, "float16", "auto", attention.alibi, attention.blocksparse)
    largest = Variant("", *shape, partition_size=_partitions(attention)[-1])
    needed = -(-smallest_workspace_bytes(largest, attention.num_kv_heads) // MIB)
    if _extends(attention):
        plans = (ExtendTorchPlan(extender, 0) for extender in extenders_of([largest]))
        needed = max(needed, *(-(-plan.smallest_workspace(attention.num_kv_heads) // MIB) for plan in plans))
    return max(int(str(DEFAULTS["limits.workspace_mib"])), needed)
