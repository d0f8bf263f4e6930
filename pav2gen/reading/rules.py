"""The rules that every spec file must satisfy, and the function that checks the rules."""

from __future__ import annotations

import functools

from pav2gen.errors import UserError
from pav2gen.family.axes import AXES
from pav2gen.family.spec import Spec, variants
from pav2gen.reading import spec_checks
from pav2gen.reading.rule import AxisRule, Rule, SpecRule
from pav2gen.runtime.choice.key import softcap_allowed, whole_blocks, whole_groups, window_allowed
from pav2gen.wording import did_you_mean, quoted, spelled


def check(spec: Spec) -> None:
    """Check every rule of ``RULES``. Raises UserError, with ``file:line``, for the first rule that ``spec`` breaks."""
    expanded = functools.cache(functools.partial(variants, spec))
    for rule in RULES:
        if found := rule.violation(spec, expanded):
            raise UserError(f"{found.sentence} (rule {rule.id})", spec.where(*found.paths, ""))


def _axis_rule(axis: str, reason: str) -> AxisRule:
    """Return the rule that ``AXES[axis].allowed`` contains all values of ``axis`` in a spec file."""
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
    if whole_blocks(partition_size, block_size):
        return None
    return f"partition_size {partition_size} is not a multiple of block_size {block_size}: take at least {block_size}"


def _whole_groups(head_size: int, kv_cache_dtype: str) -> str | None:
    if whole_groups(head_size, kv_cache_dtype):
        return None
    return f"head_size {head_size} with {kv_cache_dtype} is not a multiple of 16: take kv_cache_dtype auto for it"


def _softcap_positive(softcap: float | None) -> str | None:
    if softcap_allowed(softcap):
        return None
    return f"softcap cannot be {spelled(softcap)}: it must be {AXES['softcap'].works}"


def _window_positive(window: int | None) -> str | None:
    if window_allowed(window):
        return None
    return f"sliding_window cannot be {window}: it must be {AXES['sliding_window'].works}"


#: All rules, in the order in which ``check`` checks them.
RULES: tuple[Rule, ...] = (
    SpecRule(
        "kv-heads-divide-heads",
        "each KV head serves the same number of query heads (vLLM: num_heads % num_kv_heads == 0)",
        spec_checks.kv_heads_divide_heads,
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
        spec_checks.modifications_defined,
    ),
    SpecRule(
        "positions-fit",
        "expressions calculate with integers of 32 bits, and 2 * k + 1 must still fit",
        spec_checks.positions_fit,
    ),
    SpecRule(
        "ranks-split-heads",
        "vLLM splits the heads evenly over the ranks, and splits the KV heads or replicates them",
        spec_checks.ranks_split_heads,
    ),
    SpecRule(
        "product-within-limit",
        "generated kernels are reviewed, compiled and tested one by one",
        spec_checks.product_within_limit,
    ),
    SpecRule(
        "exclusion-on-axes",
        "an exclusion of a value that the axis lacks is a typo or a leftover",
        spec_checks.exclusions_on_axes,
    ),
    SpecRule(
        "exclusion-excludes",
        "an exclusion without effect is a mistake or hides a mistake",
        spec_checks.exclusions_exclude,
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
        spec_checks.ranks_served,
    ),
    SpecRule(
        "extend-is-dense",
        "vLLM's block-sparse pattern is relative to one query token, the last; its prefix attention never supported it",
        spec_checks.extend_is_dense,
    ),
    SpecRule(
        "fixed-partition-built",
        "a call with a fixed partition size has no other kernel to fall back to",
        spec_checks.fixed_partition_built,
    ),
    SpecRule(
        "cuda-layout-known",
        "a setting that applies to no kernel would be without effect",
        spec_checks.layout_known,
    ),
    SpecRule(
        "cuda-step-holds-a-page",
        "threads read a whole page of V at once, and need the weights of all its tokens",
        spec_checks.step_holds_a_page,
    ),
    SpecRule(
        "grid-holds-partitions",
        "a CUDA grid has a block for each partition in its third dimension, which ends at 65535",
        spec_checks.grid_holds_partitions,
    ),
    SpecRule(
        "extend-fits-shared-memory",
        "a thread block of an extend kernel keeps some keys, and the queries of its rows, in shared memory",
        spec_checks.extend_fits_shared_memory,
    ),
    SpecRule(
        "workspace-holds-a-partition",
        "a call is cut into chunks of whole partitions, for all KV heads of the rank at once",
        spec_checks.workspace_holds_a_partition,
    ),
    SpecRule(
        "workspace-holds-a-tile",
        "a launch of a CUDA extend kernel has at least one tile of query tokens, for all heads of the rank at once",
        spec_checks.workspace_holds_a_tile,
    ),
)
