"""The rules that every spec must keep. Each has an id, a reason, and a message for a spec that breaks it."""

from __future__ import annotations

import functools
import math

from pav2gen.errors import UserError
from pav2gen.family.axes import AXES, PARTITION_SIZES
from pav2gen.family.modifications.tree import MOST_TOKENS
from pav2gen.family.spec import Spec, extended, variants
from pav2gen.family.variant import ExtendVariant, Variant, expand, extenders_of
from pav2gen.plan.cuda_plan import CHOICES
from pav2gen.plan.extend_torch import ExtendTorchPlan
from pav2gen.plan.torch_plan import smallest_workspace_bytes
from pav2gen.reading.rule import AxisRule, Expanded, Rule, SpecRule, Violation
from pav2gen.runtime.select import MIB, MOST_BLOCKS, Key
from pav2gen.wording import did_you_mean, flow_list, flow_map, one_of, quoted, spelled


def check(spec: Spec) -> None:
    """Check every rule. Raises UserError, with file:line, at the first of ``RULES`` that ``spec`` breaks."""
    expanded = functools.cache(functools.partial(variants, spec))
    for rule in RULES:
        if found := rule.violation(spec, expanded):
            raise UserError(f"{found.sentence} (rule {rule.id})", spec.where(*found.paths, ""))


def _axis_rule(axis: str, reason: str) -> AxisRule:
    """Make the rule that all values of ``axis`` are allowed by the table of axes."""
    allowed, works = AXES[axis].allowed, AXES[axis].works

    def number(value: int) -> str | None:
        if value in allowed:
            return None
        nearest = min(allowed, key=lambda choice: abs(choice - value))  # type: ignore[operator]
        return f"{axis} cannot be {value}: it must be {works}; the nearest is {nearest}"

    def name(value: str) -> str | None:
        return (
            None if value in allowed else f"{axis} cannot be {quoted(value)}; {did_you_mean(value, map(str, allowed))}"
        )

    return AxisRule(axis.replace("_", "-"), reason, (axis,), number if AXES[axis].kind is int else name)


def _whole_blocks(partition_size: int, block_size: int) -> str | None:
    if partition_size % block_size == 0:
        return None
    return f"partition_size {partition_size} is not a multiple of block_size {block_size}: take at least {block_size}"


def _whole_groups(head_size: int, kv_cache_dtype: str) -> str | None:
    if kv_cache_dtype == "auto" or head_size % 16 == 0:
        return None
    return f"head_size {head_size} with {kv_cache_dtype} is not a multiple of 16: take kv_cache_dtype auto for it"


def _softcap_positive(softcap: float | None) -> str | None:
    if softcap is None or 1e-3 <= softcap <= 1e6:
        return None
    return f"softcap cannot be {spelled(softcap)}: it must be {AXES['softcap'].works}"


def _window_positive(window: int | None) -> str | None:
    if window is None or 1 <= window <= MOST_TOKENS:
        return None
    return f"sliding_window cannot be {window}: it must be {AXES['sliding_window'].works}"


def _modifications_defined(spec: Spec, expanded: Expanded) -> Violation | None:
    names = [name for name in spec.axes["modification"] if name is not None]
    for place, name in enumerate(spec.axes["modification"]):
        if name is not None and name not in spec.modifications:
            works = did_you_mean(str(name), spec.modifications) if spec.modifications else "define it there"
            paths = (f"features.modification[{place}]", "features.modification", "features")
            return Violation(f"modification {quoted(name)} is not among the modifications; {works}", paths)
    for name in spec.modifications:
        if name not in names:
            sentence = f"no kernel has the modification {name}; write features: {{modification: [null, {name}]}}"
            return Violation(sentence, (f"modifications.{name}",))
    return None


def _positions_fit(spec: Spec, expanded: Expanded) -> Violation | None:
    if spec.model.max_seq_len <= MOST_TOKENS or spec.axes["modification"] == (None,):
        return None
    sentence = f"model.max_seq_len {spec.model.max_seq_len} is over {MOST_TOKENS}, which a modification can calculate"
    return Violation(sentence, ("model.max_seq_len", "model"))


def _kv_heads_divide_heads(spec: Spec, expanded: Expanded) -> Violation | None:
    heads, kv_heads = spec.model.num_heads, spec.model.num_kv_heads
    if heads % kv_heads == 0:
        return None
    return Violation(f"model.num_heads {heads} is not a multiple of num_kv_heads {kv_heads}", ("model.num_heads",))


def _ranks_split_heads(spec: Spec, expanded: Expanded) -> Violation | None:
    model = spec.model
    for index, size in enumerate(model.tensor_parallel):
        if not model.shards_over(size):
            sizes = [other for other in range(1, model.num_heads + 1) if model.shards_over(other)]
            shape = f"{model.num_heads} heads and {model.num_kv_heads} KV heads"
            sentence = f"{shape} do not split over {size} ranks; they do over {one_of(sizes)}"
            return Violation(sentence, (f"model.tensor_parallel[{index}]", "model.tensor_parallel", "model"))
    return None


def _product_within_limit(spec: Spec, expanded: Expanded) -> Violation | None:
    sizes = [len(spec.axes[axis]) for axis in AXES]
    product, limit = math.prod(sizes), spec.limits.max_variants
    if product <= limit:
        return None
    factors = " x ".join(f"{size} {axis}" for axis, size in zip(AXES, sizes, strict=True) if size > 1)
    sentence = f"the axes make {product} variants ({factors}), over limits.max_variants {limit}"
    return Violation(f"{sentence}; shorten an axis, or raise the limit", ("axes",))


def _exclusions_on_axes(spec: Spec, expanded: Expanded) -> Violation | None:
    for index, exclusion in enumerate(spec.exclude):
        for axis, values in exclusion.when.items():
            for place, value in enumerate(values):
                if value not in spec.axes[axis]:
                    hint = did_you_mean(spelled(value), map(spelled, spec.axes[axis]))
                    has = f"{axis} {flow_list(spec.axes[axis])} lacks {quoted(spelled(value))}"
                    path = f"exclude[{index}].when.{axis}"
                    return Violation(f"excludes nothing: {has}; {hint}", (f"{path}[{place}]", path, "exclude"))
    return None


def _exclusions_exclude(spec: Spec, expanded: Expanded) -> Violation | None:
    left = expand(spec.name, spec.axes) if spec.exclude else ()
    for index, exclusion in enumerate(spec.exclude):
        rest = tuple(variant for variant in left if not exclusion.covers(variant))
        if len(rest) == len(left):
            sentence = "the exclusions above already cover all that this one excludes; remove it"
            return Violation(sentence, (f"exclude[{index}]", "exclude"))
        if not rest:
            sentence = "this exclusion removes the last kernels of the family; exclude less"
            return Violation(sentence, (f"exclude[{index}]", "exclude"))
        left = rest
    return None


def _ranks_served(spec: Spec, expanded: Expanded) -> Violation | None:
    ratios = {variant.gqa_ratio for variant in expanded()}
    for index, rank in enumerate(spec.model.ranks()):
        if rank.gqa_ratio not in ratios:
            shape = f"each of {rank.tensor_parallel} ranks has ratio {rank.gqa_ratio}"
            heads = f"({rank.num_heads} heads over {rank.num_kv_heads})"
            ratio, axis = rank.gqa_ratio, spec.axes["gqa_ratio"]
            works = "exclude less" if ratio in axis else f"write gqa_ratio: {flow_list(extended(axis, ratio))}"
            sentence = f"{shape} {heads}, which no variant serves; {works}"
            return Violation(sentence, (f"model.tensor_parallel[{index}]", "model.tensor_parallel", "model"))
    return None


def _extend_is_dense(spec: Spec, expanded: Expanded) -> Violation | None:
    if "extend" not in spec.operators or not any(variant.blocksparse for variant in expanded()):
        return None
    sentence = (
        "there are no block-sparse extend kernels; write features: {blocksparse: false}, and put the block-sparse "
        "kernels into another spec, with operators: [decode]"
    )
    return Violation(sentence, ("features.blocksparse", "operators"))


def _fixed_partition_built(spec: Spec, expanded: Expanded) -> Violation | None:
    partition, paths = spec.dispatch.partition, ("dispatch.partition", "dispatch")
    if partition is None:
        return None
    if partition not in spec.axes["partition_size"]:
        built = one_of(("auto", *spec.axes["partition_size"]))
        return Violation(f"dispatch.partition {partition} is not built; write {built}", paths)
    keys: dict[Key, set[int]] = {}
    for variant in expanded():
        keys.setdefault(variant.key, set()).add(variant.partition_size)
    for key, sizes in keys.items():
        if partition not in sizes:
            what = flow_map(zip(Key._fields, key, strict=True))
            sentence = f"dispatch.partition {partition} is excluded for {what}; exclude less, or write auto"
            return Violation(sentence, paths)
    return None


def _layout_known(spec: Spec, expanded: Expanded) -> Violation | None:
    if spec.cuda and "cuda" not in spec.backends:
        return Violation(
            "no CUDA kernel is built that could use this setting; write backends: [torch, cuda]", ("cuda",)
        )
    for name, value in spec.cuda.items():
        if value not in CHOICES[name]:
            return Violation(f"cuda.{name} cannot be {value}; it is {one_of(CHOICES[name])}", (f"cuda.{name}",))
    return None


def _step_holds_a_page(spec: Spec, expanded: Expanded) -> Violation | None:
    step, page = spec.cuda.get("step"), max(variant.block_size for variant in expanded())
    if step is None or step >= page:
        return None
    return Violation(f"cuda.step {step} is less than a page of {page} tokens; write at least {page}", ("cuda.step",))


def _grid_holds_partitions(spec: Spec, expanded: Expanded) -> Violation | None:
    length = spec.model.max_seq_len
    smallest = min(variant.partition_size for variant in expanded())
    if "cuda" not in spec.backends or length <= MOST_BLOCKS * smallest:
        return None
    what = f"partitions of {smallest} make {-(-length // smallest)} of max_seq_len {length}, and a grid holds"
    fit = [size for size in PARTITION_SIZES if length <= MOST_BLOCKS * size]
    works = f"take partition_size {fit[0]} or more, or leave" if fit else "leave"
    return Violation(
        f"{what} {MOST_BLOCKS}; {works} cuda out of the backends", ("axes.partition_size", "model.max_seq_len")
    )


def _workspace_holds_a_partition(spec: Spec, expanded: Expanded) -> Violation | None:
    kv_heads: dict[int, int] = {}
    for rank in spec.model.ranks():
        kv_heads[rank.gqa_ratio] = max(rank.num_kv_heads, kv_heads.get(rank.gqa_ratio, 1))
    family: list[Variant | ExtendVariant] = [
        *expanded(),
        *(extenders_of(expanded()) if "extend" in spec.operators else ()),
    ]
    heads = {variant: kv_heads.get(variant.gqa_ratio, spec.model.num_kv_heads) for variant in family}
    sizes = {variant: _workspace_bytes(variant, count) for variant, count in heads.items()}
    largest = max(family, key=lambda variant: sizes[variant])
    needed = math.ceil(sizes[largest] / MIB)
    if needed <= spec.limits.workspace_mib:
        return None
    what = f"one partition of {heads[largest]} KV heads of {largest.slug} needs {needed} MiB"
    sentence = f"{what}, limits.workspace_mib is {spec.limits.workspace_mib}; raise it to {needed}"
    smaller = ", or take a smaller partition_size" if isinstance(largest, Variant) else ""
    return Violation(f"{sentence}{smaller}", ("limits.workspace_mib", "limits"))


def _workspace_bytes(variant: Variant | ExtendVariant, kv_heads: int) -> int:
    """The smallest workspace of a PyTorch kernel in bytes."""
    if isinstance(variant, Variant):
        return smallest_workspace_bytes(variant, kv_heads)
    return ExtendTorchPlan(variant, 0).smallest_workspace(kv_heads)


#: Every rule, in the order in which they are checked.
RULES: tuple[Rule, ...] = (
    SpecRule(
        "kv-heads-divide-heads",
        "each KV head serves the same number of query heads (vLLM: num_heads % num_kv_heads == 0)",
        _kv_heads_divide_heads,
    ),
    _axis_rule(
        "head_size",
        "a key lies in the cache as groups of 16 bytes, 8 elements of float16 (vLLM's split_kv_cache); models have "
        "heads of 32 to 256 elements, and a few of 512",
    ),
    _axis_rule(
        "gqa_ratio",
        "one block holds the query heads of a whole group; the largest group known is Falcon-7B's 71",
    ),
    _axis_rule(
        "partition_size",
        "threads share a partition evenly; vLLM's V2 takes 512, the ROCm forks 256 and 1024",
    ),
    _axis_rule(
        "block_size",
        "vLLM 0.6 offers pages of 8, 16 and 32 tokens, later ones and other cards' forks also 64 and 128",
    ),
    _axis_rule("dtype", "the types of query and output that vLLM's operator takes"),
    _axis_rule(
        "kv_cache_dtype",
        "the names of vLLM's --kv-cache-dtype; fp8 and int8 are storage formats, decoded in float32 on any card",
    ),
    AxisRule(
        "softcap-positive",
        "a cap of 0 turns every score into 0, and a negative cap equals the positive one",
        ("softcap",),
        _softcap_positive,
    ),
    AxisRule(
        "window-positive",
        "a window counts the current token, as Hugging Face and vLLM do: W tokens are q - k < W",
        ("sliding_window",),
        _window_positive,
    ),
    SpecRule(
        "modification-defined",
        "a kernel needs the definition of its modification, and a definition without a kernel has no use",
        _modifications_defined,
    ),
    SpecRule(
        "positions-fit",
        "expressions calculate with integers of 32 bits, and 2 * k + 1 must still fit",
        _positions_fit,
    ),
    SpecRule(
        "ranks-split-heads",
        "vLLM splits the heads evenly over the ranks, and splits the KV heads or replicates them",
        _ranks_split_heads,
    ),
    SpecRule(
        "product-within-limit",
        "generated kernels are reviewed, compiled and tested one by one",
        _product_within_limit,
    ),
    SpecRule(
        "exclusion-on-axes",
        "an exclusion of a value that the axis lacks is a typo or a leftover",
        _exclusions_on_axes,
    ),
    SpecRule(
        "exclusion-excludes",
        "an exclusion without effect is a mistake or hides a mistake",
        _exclusions_exclude,
    ),
    AxisRule(
        "whole-blocks",
        "a partition begins at the beginning of a page, so that one thread block reads each page",
        ("partition_size", "block_size"),
        _whole_blocks,
    ),
    AxisRule(
        "whole-groups",
        "a key lies in the cache as groups of 16 bytes, 16 elements of 8 bits (vLLM's split_kv_cache)",
        ("head_size", "kv_cache_dtype"),
        _whole_groups,
    ),
    SpecRule(
        "ranks-served",
        "a model without a kernel for its ranks fails at the first decode; beyond the number of KV heads vLLM "
        "replicates them, and the ratio falls",
        _ranks_served,
    ),
    SpecRule(
        "extend-is-dense",
        "vLLM's block-sparse pattern is relative to one query token, the last; its prefix attention never supported it",
        _extend_is_dense,
    ),
    SpecRule(
        "fixed-partition-built",
        "a call with a fixed partition size has no other kernel to fall back to",
        _fixed_partition_built,
    ),
    SpecRule(
        "cuda-layout-known",
        "a setting that applies to no kernel would be without effect",
        _layout_known,
    ),
    SpecRule(
        "cuda-step-holds-a-page",
        "threads read a whole page of V at once, and need the weights of all its tokens",
        _step_holds_a_page,
    ),
    SpecRule(
        "grid-holds-partitions",
        "a CUDA grid has a block for each partition in its third dimension, which ends at 65535",
        _grid_holds_partitions,
    ),
    SpecRule(
        "workspace-holds-a-partition",
        "a call is cut into chunks of whole partitions, for all KV heads of the rank at once",
        _workspace_holds_a_partition,
    ),
)
