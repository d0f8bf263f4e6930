"""Functions that check a spec as a whole, one function for each ``SpecRule`` in ``reading.rules``.

Each function returns the first violation of its rule in ``spec``, or None if the spec satisfies the rule.

expanded: a function without arguments that returns the spec's decode kernels.
"""

from __future__ import annotations

import math

from pav2gen.family.axes import AXES, PARTITION_SIZES
from pav2gen.family.spec import Spec, extended
from pav2gen.family.variant import ExtendVariant, Variant, expand, extenders_of
from pav2gen.plan.cuda_plan import CHOICES
from pav2gen.plan.extend_cuda import least_shared_bytes, plan_extend_cuda, shared_limit
from pav2gen.plan.extend_torch import ExtendTorchPlan
from pav2gen.plan.torch_plan import smallest_workspace_bytes
from pav2gen.reading.rule import Expanded, Violation
from pav2gen.runtime.choice.dispatch_row import MIB
from pav2gen.runtime.choice.key import MOST_TOKENS, Key
from pav2gen.runtime.choice.select import MOST_BLOCKS
from pav2gen.wording import did_you_mean, flow_list, flow_map, one_of, quoted, spelled


def modifications_defined(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that ``features.modification`` names exactly the score or mask modifications that the spec file defines."""
    names = [name for name in spec.axes["modification"] if name is not None]
    for place, name in enumerate(spec.axes["modification"]):
        if name is not None and name not in spec.modifications:
            works = did_you_mean(str(name), spec.modifications) if spec.modifications else "define it there"
            paths = (f"features.modification[{place}]", "features.modification", "features")
            return Violation(f"modification {quoted(name)} is not defined under modifications; {works}", paths)
    for name in spec.modifications:
        if name not in names:
            sentence = f"no kernel has the modification {name}; write features: {{modification: [null, {name}]}}"
            return Violation(sentence, (f"modifications.{name}",))
    return None


def positions_fit(spec: Spec, expanded: Expanded) -> Violation | None:
    """If the spec has a modification of scores or masks, check that ``max_seq_len`` is at most ``MOST_TOKENS``.

    The expressions of a modification compute token positions as 32-bit integers.
    """
    if spec.model.max_seq_len <= MOST_TOKENS or spec.axes["modification"] == (None,):
        return None
    sentence = (
        f"model.max_seq_len {spec.model.max_seq_len} is too large for a modification; write at most {MOST_TOKENS}"
    )
    return Violation(sentence, ("model.max_seq_len", "model"))


def kv_heads_divide_heads(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that the model's number of query heads is a multiple of its number of KV heads."""
    heads, kv_heads = spec.model.num_heads, spec.model.num_kv_heads
    if heads % kv_heads == 0:
        return None
    return Violation(f"model.num_heads {heads} is not a multiple of num_kv_heads {kv_heads}", ("model.num_heads",))


def ranks_split_heads(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that vLLM can split the model's heads over each number of ranks in ``model.tensor_parallel``."""
    model = spec.model
    for index, size in enumerate(model.tensor_parallel):
        if not model.shards_over(size):
            sizes = [other for other in range(1, model.num_heads + 1) if model.shards_over(other)]
            shape = f"{model.num_heads} heads and {model.num_kv_heads} KV heads"
            sentence = f"{shape} cannot be split over {size} ranks; they can be split over {one_of(sizes)}"
            return Violation(sentence, (f"model.tensor_parallel[{index}]", "model.tensor_parallel", "model"))
    return None


def product_within_limit(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that the axis values in the spec file have at most ``limits.max_variants`` combinations.

    The combinations that the spec file excludes count too.
    """
    sizes = [len(spec.axes[axis]) for axis in AXES]
    product, limit = math.prod(sizes), spec.limits.max_variants
    if product <= limit:
        return None
    factors = " x ".join(f"{size} {axis}" for axis, size in zip(AXES, sizes, strict=True) if size > 1)
    sentence = f"the axes make {product} variants ({factors}), over limits.max_variants {limit}"
    return Violation(f"{sentence}; shorten an axis, or raise the limit", ("axes",))


def exclusions_on_axes(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that each axis value in an exclusion is among the values that the spec file lists for the axis."""
    for index, exclusion in enumerate(spec.exclude):
        for axis, values in exclusion.when.items():
            for place, value in enumerate(values):
                if value not in spec.axes[axis]:
                    hint = did_you_mean(spelled(value), map(spelled, spec.axes[axis]))
                    has = f"{axis} {flow_list(spec.axes[axis])} does not contain {quoted(spelled(value))}"
                    path = f"exclude[{index}].when.{axis}"
                    return Violation(f"excludes nothing: {has}; {hint}", (f"{path}[{place}]", path, "exclude"))
    return None


def exclusions_exclude(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that each exclusion removes at least one further kernel, and that at least one kernel remains."""
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


def ranks_served(spec: Spec, expanded: Expanded) -> Violation | None:
    """For each number of ranks in ``model.tensor_parallel``, check that a decode kernel has the GQA ratio of a rank.

    The GQA ratio of a rank is the number of query heads per KV head on the rank.
    """
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


def extend_is_dense(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that a spec with extend kernels has no block-sparse kernels.

    Extend kernels compute attention for several new tokens of each sequence.
    """
    if "extend" not in spec.operators or not any(variant.blocksparse for variant in expanded()):
        return None
    sentence = (
        "there are no block-sparse extend kernels; write features: {blocksparse: false}, and put the block-sparse "
        "kernels into another spec, with operators: [decode]"
    )
    return Violation(sentence, ("features.blocksparse", "operators"))


def fixed_partition_built(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that the spec builds a decode kernel with the partition size ``dispatch.partition`` for each kernel key.

    A kernel key consists of the axis values that a call of the operator decides, such as the head size. The check
    passes if ``dispatch.partition`` is ``auto``.
    """
    partition, paths = spec.dispatch.partition, ("dispatch.partition", "dispatch")
    if partition is None:
        return None
    if partition not in spec.axes["partition_size"]:
        built = one_of(("auto", *spec.axes["partition_size"]))
        return Violation(f"no kernel has the partition size of dispatch.partition {partition}; write {built}", paths)
    keys: dict[Key, set[int]] = {}
    for variant in expanded():
        keys.setdefault(variant.key, set()).add(variant.partition_size)
    for key, sizes in keys.items():
        if partition not in sizes:
            what = flow_map(zip(Key._fields, key, strict=True))
            sentence = f"dispatch.partition {partition} is excluded for {what}; exclude less, or write auto"
            return Violation(sentence, paths)
    return None


def layout_known(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that each setting in the section ``cuda`` of a spec file has an allowed value.

    If a spec file has the section ``cuda``, check too that the spec builds CUDA decode kernels.
    """
    if spec.cuda and "cuda" not in spec.backends:
        return Violation(
            "no CUDA kernel is built that could use this setting; write backends: [torch, cuda]", ("cuda",)
        )
    if spec.cuda and "decode" not in spec.operators:
        works = f"write operators: {flow_list(('decode', *spec.operators))}, or remove cuda"
        return Violation(f"this setting applies to decode kernels alone; {works}", ("cuda",))
    for name, value in spec.cuda.items():
        if value not in CHOICES[name]:
            return Violation(f"cuda.{name} cannot be {value}; write {one_of(CHOICES[name])}", (f"cuda.{name}",))
    return None


def step_holds_a_page(spec: Spec, expanded: Expanded) -> Violation | None:
    """If the spec sets ``cuda.step``, check that the block size of every kernel is at most ``cuda.step`` tokens.

    ``cuda.step`` is the number of tokens whose softmax weights a thread block keeps in shared memory at once.
    """
    step, page = spec.cuda.get("step"), max(variant.block_size for variant in expanded())
    if step is None or step >= page:
        return None
    return Violation(f"cuda.step {step} is less than a page of {page} tokens; write at least {page}", ("cuda.step",))


def grid_holds_partitions(spec: Spec, expanded: Expanded) -> Violation | None:
    """If the spec builds CUDA kernels, check that a sequence has at most ``MOST_BLOCKS`` partitions.

    The check assumes a sequence of ``max_seq_len`` tokens and the smallest partition size in the spec. ``MOST_BLOCKS``
    is the largest number of thread blocks along the grid dimension of the partitions.
    """
    length = spec.model.max_seq_len
    smallest = min(variant.partition_size for variant in expanded())
    if "cuda" not in spec.backends or length <= MOST_BLOCKS * smallest:
        return None
    what = f"max_seq_len {length} has {-(-length // smallest)} partitions of {smallest} tokens, but a CUDA grid at most"
    fit = [size for size in PARTITION_SIZES if length <= MOST_BLOCKS * size]
    works = f"take partition_size {fit[0]} or more, or leave" if fit else "leave"
    return Violation(
        f"{what} {MOST_BLOCKS}; {works} cuda out of the backends", ("axes.partition_size", "model.max_seq_len")
    )


def workspace_holds_a_partition(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that ``limits.workspace_mib`` is enough for every PyTorch kernel that computes attention.

    A kernel needs a workspace for at least one partition of one sequence, with all KV heads of a rank. The check passes
    if the spec builds no PyTorch kernels.
    """
    if "torch" not in spec.backends:
        return None
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
    sentence = f"{what}, but limits.workspace_mib is {spec.limits.workspace_mib}; raise it to {needed}"
    smaller = ", or take a smaller partition_size" if isinstance(largest, Variant) else ""
    return Violation(f"{sentence}{smaller}", ("limits.workspace_mib", "limits"))


def extend_fits_shared_memory(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that the smallest thread block of each CUDA extend kernel fits into the shared memory of the target GPU."""
    limit = shared_limit(spec.target)
    for variant in _cuda_extenders(spec, expanded):
        if (needed := least_shared_bytes(variant, spec.target)) > limit:
            what = f"the least thread block of {variant.slug} needs {needed} bytes of shared memory, but has {limit}"
            return Violation(f"{what}; leave cuda out of the backends, or extend out of the operators", ("operators",))
    return None


def workspace_holds_a_tile(spec: Spec, expanded: Expanded) -> Violation | None:
    """Check that ``limits.workspace_mib`` is enough for one query tile of each CUDA extend kernel.

    A query tile consists of a fixed number of consecutive new tokens of one sequence. The workspace holds the partial
    results of a query tile, separately for each partition of the keys.
    """
    most = spec.limits.workspace_mib
    for variant in _cuda_extenders(spec, expanded):
        plan = plan_extend_cuda(variant, spec.target)
        ratio = variant.gqa_ratio
        heads = max((rank.num_heads for rank in spec.model.ranks() if rank.gqa_ratio == ratio), default=ratio)
        needed = math.ceil(plan.partials_bytes(heads, spec.model.max_seq_len) / MIB)
        if needed > most:
            what = f"the partial results of {plan.geometry.tokens} query tokens and {heads} heads of {variant.slug}"
            sentence = f"{what} need {needed} MiB, but limits.workspace_mib is {most}; raise it to {needed}"
            return Violation(sentence, ("limits.workspace_mib", "limits"))
    return None


def _cuda_extenders(spec: Spec, expanded: Expanded) -> tuple[ExtendVariant, ...]:
    """Return the extend kernels that the spec builds in CUDA."""
    return extenders_of(expanded()) if "extend" in spec.operators and "cuda" in spec.backends else ()


def _workspace_bytes(variant: Variant | ExtendVariant, kv_heads: int) -> int:
    """Return the smallest workspace, in bytes, of the PyTorch kernel of ``variant`` for ``kv_heads`` KV heads."""
    if isinstance(variant, Variant):
        return smallest_workspace_bytes(variant, kv_heads)
    return ExtendTorchPlan(variant, 0).smallest_workspace(kv_heads)
